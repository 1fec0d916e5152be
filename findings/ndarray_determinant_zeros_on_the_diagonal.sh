#!/usr/bin/env bash
# ndarray-determinant 1.0.0: the determinant of 0 1, 1 0 is 0, and of 1 2 3, 2 4 7, 3 5 3 it is 0 instead of 1.
#
# ndarray-determinant is documented to compute the determinant of a square matrix. It multiplies the diagonal of an LU
# decomposition by ndarray-crout-decomposition, which never exchanges rows. If a pivot is 0, that decomposition gives up
# and returns false. The determinant ignores this, and multiplies what the unfinished decomposition has left, which
# includes the zero. So the result is 0 for every matrix with a leading block that is singular, although the matrix
# itself is not, such as all permutations except the identity. Nothing warns of it. With a tiny pivot instead of a zero,
# the result may have no correct digit.
#
# A way around it: exchange rows so that the pivots are large, and count the exchanges.
#
# Seen with ndarray-determinant 1.0.0 on node 20.20:
#   [[0,1],[1,0]]:                 0, expected -1
#   [[1,2,3],[2,4,7],[3,5,3]]:     0, expected 1
#   [[0,2,0],[0,0,3],[4,0,0]]:     0, expected 24
#   [[1e-20,1],[1,1]]:             -1, expected -1
#   [[1e-20,1,1],[1,1,2],[1,2,1]]: -1, expected 2
#   [[1,2,3],[4,5,6],[7,8,10]]:    -3, expected -3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ndarray-determinant@1.0.0 ndarray-crout-decomposition@1.1.0 ndarray@1.1.1
cat > determinant.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const crout = require("ndarray-crout-decomposition");
const determinant = require("ndarray-determinant");
const ndarray = require("ndarray");

const expand = (m) =>
  m.length === 0 ? 1 : m.reduce((sum, row, i) => {
    const minor = m.filter((_, k) => k !== i).map((other) => other.slice(1));
    return sum + (i % 2 ? -1 : 1) * row[0] * expand(minor);
  }, 0);
const cases = [
  [[[0, 1], [1, 0]], 0, false],
  [[[1, 2, 3], [2, 4, 7], [3, 5, 3]], 0, false],
  [[[0, 2, 0], [0, 0, 3], [4, 0, 0]], 0, false],
  [[[1e-20, 1], [1, 1]], -1, true],
  [[[1e-20, 1, 1], [1, 1, 2], [1, 2, 1]], -1, true],
  [[[1, 2, 3], [4, 5, 6], [7, 8, 10]], -3, true],
];
for (const [matrix, seen, finished] of cases) {
  const size = matrix.length;
  const array = ndarray(Float64Array.from(matrix.flat()), [size, size]);
  const [found, expected] = [determinant(array), expand(matrix)].map((value) => Math.round(value * 1e6) / 1e6);
  console.log(`${(JSON.stringify(matrix) + ":").padEnd(30)} ${found}, expected ${expected}`);
  assert.ok(found === seen, "the behaviour has changed");
  const factors = ndarray(new Float64Array(size * size), [size, size]);
  assert.equal(crout(array, factors, factors), finished);
}
JAVASCRIPT
node determinant.cjs
