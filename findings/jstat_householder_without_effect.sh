#!/usr/bin/env bash
# jstat 1.9.6: the product of a column and its transpose is zero, and jStat.householder returns the matrix as it is.
#
# jStat.householder should bring a symmetric matrix into tridiagonal form by Householder's method: zeros outside of the three diagonals in
# the middle, and the same eigenvalues. But it returns the matrix as it is. The cause is jStat.transpose: of a column [[1], [2]] it gives
# the vector [1, 2] instead of the row [[1, 2]], and jStat.multiply of the column and this vector is a matrix of zeros. So each reflection
# is the identity. Nothing warns of it. Objects made by jStat(...) keep the row, and multiply a column and its transpose correctly.
#
# A way around it: jStat.outer([1, 2], [1, 2]) for the product. There is none for householder.
#
# Seen with jstat 1.9.6 on node 20.20, for a = [[4,1,2],[1,3,0],[2,0,5]] and the column c = [[1],[2]]:
#   transpose(c):              [1,2], expected [[1,2]]
#   multiply(c, transpose(c)): [[0,0],[0,0]], expected [[1,2],[2,4]]
#   outer([1,2], [1,2]):       [[1,2],[2,4]], expected [[1,2],[2,4]]
#   householder(a):            [[4,1,2],[1,3,0],[2,0,5]], expected [[4,-2.236,0],[-2.236,4.6,-0.8],[0,-0.8,3.4]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit jstat@1.9.6
cat > reflect.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import jstat from "jstat";

const { jStat } = jstat;
const a = [[4, 1, 2], [1, 3, 0], [2, 0, 5]];
const c = [[1], [2]];

// The reflection that takes the lower part (1, 2) of the first column to (-sqrt(5), 0), by plain sums of products.
const product = (x, y) => x.map((row) => y[0].map((_, j) => row.reduce((sum, value, k) => sum + value * y[k][j], 0)));
const v = [0, 1 + Math.sqrt(5), 2];
const length = v.reduce((sum, x) => sum + x * x, 0);
const reflection = v.map((x, i) => v.map((y, j) => (i === j ? 1 : 0) - (2 * x * y) / length));
const tridiagonal = product(reflection, product(a, reflection));

const rounded = (value) => (Array.isArray(value) ? value.map(rounded) : Math.round(value * 1000) / 1000 + 0);
const cases = [
  ["transpose(c)", jStat.transpose(c), [[1, 2]], [1, 2]],
  ["multiply(c, transpose(c))", jStat.multiply(c, jStat.transpose(c)), product(c, [[1, 2]]), [[0, 0], [0, 0]]],
  ["outer([1,2], [1,2])", jStat.outer([1, 2], [1, 2]), product(c, [[1, 2]]), [[1, 2], [2, 4]]],
  ["householder(a)", jStat.householder(a), tridiagonal, a],
];
for (const [name, result, expected, seen] of cases) {
  const [found, right] = [rounded(result), rounded(expected)].map((value) => JSON.stringify(value));
  console.log(`${(name + ":").padEnd(26)} ${found}, expected ${right}`);
  assert.deepEqual(rounded(result), seen, "the behaviour has changed");
  assert.equal(found === right, name.startsWith("outer"));
}
JAVASCRIPT
node reflect.mjs
