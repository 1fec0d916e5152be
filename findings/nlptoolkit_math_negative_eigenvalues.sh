#!/usr/bin/env bash
# nlptoolkit-math 1.0.7: the matrix 2 0, 0 -3 has one eigenvalue, and the smallest ones come first.
#
# Matrix.characteristics is documented to find the eigenvalues and eigenvectors of a matrix, and the documentation says
# that they come from the largest to the smallest. One would expect two for a symmetric matrix of size 2x2, whatever
# their signs. Only those that are greater than 0 are returned, and the sum of the eigenvalues is not the trace any
# more. The order is from the smallest to the largest, so whoever takes the first ones for principal components has the
# last ones. Nothing warns of it.
#
# A way around it: add a multiple of the identity that makes all eigenvalues positive, subtract it from the results, and
# sort them.
#
# Seen with nlptoolkit-math 1.0.7 on node 20.20:
#   [[2,0],[0,-3]]:  2; shifted by 10: 2 -3, expected 2 -3
#   [[0,1],[1,0]]:   1; shifted by 10: 1 -1, expected 1 -1
#   [[1,1],[1,1]]:   2; shifted by 10: 2 0, expected 2 0
#   [[-1,0],[0,-2]]: none; shifted by 10: -1 -2, expected -1 -2
#   [[2,1],[1,2]]:   1 3; shifted by 10: 3 1, expected 3 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit nlptoolkit-math@1.0.7
cat > eigenvalues.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { Matrix } = require("nlptoolkit-math");

const round = (x) => Math.round(x * 1e6) / 1e6 + 0;
const eigenvalues = (rows, shift) => {
  const matrix = new Matrix(rows.length, rows.length);
  rows.forEach((row, i) => row.forEach((value, j) => matrix.setValue(i, j, value + (i === j ? shift : 0))));
  return matrix.characteristics().map((vector) => round(vector.getEigenValue() - shift));
};
const cases = [
  [[[2, 0], [0, -3]], "2", "2 -3"],
  [[[0, 1], [1, 0]], "1", "1 -1"],
  [[[1, 1], [1, 1]], "2", "2 0"],
  [[[-1, 0], [0, -2]], "none", "-1 -2"],
  [[[2, 1], [1, 2]], "1 3", "3 1"],
];
for (const [rows, seen, expected] of cases) {
  const found = eigenvalues(rows, 0).join(" ") || "none";
  const shifted = eigenvalues(rows, 10).sort((x, y) => y - x).join(" ");
  console.log(`${(JSON.stringify(rows) + ":").padEnd(16)} ${found}; shifted by 10: ${shifted}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(shifted, expected);
  assert.notEqual(found, expected);
}
JAVASCRIPT
node eigenvalues.cjs
