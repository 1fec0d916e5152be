#!/usr/bin/env bash
# gl-matrix 3.4.4: mat2.LDU writes no diagonal matrix, and the product of its factors is not the matrix.
#
# mat2.LDU(L, D, U, a) is documented to return a lower triangular matrix L, a diagonal matrix D and an upper triangular matrix U by a
# factorization of a. One would expect that L * D * U is a. But D is never written. gl-matrix stores matrices by columns, and LDU takes the
# four numbers for rows, so L is an upper triangular matrix with columns (1, 0) and (1.5, 1), and U is a lower one. The diagonal of L is not
# written either. With arrays made by mat2.create(), which hold the identity, U * L is the matrix, and L * D * U is another one. Nothing
# warns of it.
#
# A way around it: start from mat2.create(), and multiply U * L.
#
# Seen with gl-matrix 3.4.4 on node 20.20, for a with the columns (4, 2) and (6, 5):
#   L:         [1,0,1.5,1], expected [1,0.5,0,1]
#   D:         [1,0,0,1], expected [4,0,0,2]
#   U:         [4,2,0,2], expected [1,0,1.5,1]
#   L * D * U: [7,2,3,2], expected [4,2,6,5]
#   U * L:     [4,2,6,5]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit gl-matrix@3.4.4
cat > factorize.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { mat2 } from "gl-matrix";

const a = [4, 2, 6, 5];
const [L, D, U] = [mat2.create(), mat2.create(), mat2.create()];
mat2.LDU(L, D, U, a);

// By columns: a = [[a0, a2], [a1, a3]] = [[1, 0], [a1 / a0, 1]] * diag(a0, a3 - a1 * a2 / a0) * [[1, a2 / a0], [0, 1]].
const lower = [1, a[1] / a[0], 0, 1];
const diagonal = [a[0], 0, 0, a[3] - (a[1] * a[2]) / a[0]];
const upper = [1, 0, a[2] / a[0], 1];
const product = (...factors) => factors.reduce((x, y) => Array.from(mat2.multiply(mat2.create(), x, y)));
assert.deepEqual(product(lower, diagonal, upper), a);

const cases = [
  ["L", L, lower, [1, 0, 1.5, 1]],
  ["D", D, diagonal, [1, 0, 0, 1]],
  ["U", U, upper, [4, 2, 0, 2]],
  ["L * D * U", product(L, D, U), a, [7, 2, 3, 2]],
];
for (const [name, result, expected, seen] of cases) {
  const found = Array.from(result);
  console.log(`${(name + ":").padEnd(10)} ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  assert.notDeepEqual(found, expected);
}
console.log(`U * L:     ${JSON.stringify(product(U, L))}`);
assert.deepEqual(product(U, L), a);
JAVASCRIPT
node factorize.mjs
