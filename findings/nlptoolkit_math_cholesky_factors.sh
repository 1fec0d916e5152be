#!/usr/bin/env bash
# nlptoolkit-math 1.0.7: the Cholesky factor of 4 2, 2 5 is 2 0, 1 1, whose product with its transpose is 4 2, 2 2.
#
# Matrix.choleskyDecomposition is documented to give the Cholesky decomposition: a lower triangle whose product with its
# transpose is the matrix. To compute an element, products of elements of the triangle that are known by then must be
# subtracted. The code takes them from the matrix instead. So the first column is right, and the others are wrong unless
# these products are 0. If a wrong difference is negative, the result has NaN, although the matrix is positive
# definite. If the first element is 1, the second column is right as well. Nothing warns of it.
#
# A way around it: eigenvectors by characteristics, if any square root of the matrix will do.
#
# Seen with nlptoolkit-math 1.0.7 on node 20.20:
#   [[4,2],[2,5]]:             [[2,0],[1,1]], expected [[2,0],[1,2]]
#   [[4,2],[2,3]]:             [[2,0],[1,NaN]], expected [[2,0],[1,1.4142]]
#   [[1,1,1],[1,2,3],[1,3,6]]: [[1,0,0],[1,1,0],[1,2,NaN]], expected [[1,0,0],[1,1,0],[1,2,1]]
#   [[4,0],[0,9]]:             [[2,0],[0,3]], expected [[2,0],[0,3]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit nlptoolkit-math@1.0.7
cat > cholesky.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { Matrix } = require("nlptoolkit-math");

const round = (x) => Math.round(x * 1e4) / 1e4;
const text = (rows) => `[${rows.map((row) => `[${row.map(round).join(",")}]`).join(",")}]`;
const cases = [
  [[[4, 2], [2, 5]], "[[2,0],[1,1]]", [[2, 0], [1, 2]]],
  [[[4, 2], [2, 3]], "[[2,0],[1,NaN]]", [[2, 0], [1, Math.SQRT2]]],
  [[[1, 1, 1], [1, 2, 3], [1, 3, 6]], "[[1,0,0],[1,1,0],[1,2,NaN]]", [[1, 0, 0], [1, 1, 0], [1, 2, 1]]],
  [[[4, 0], [0, 9]], "[[2,0],[0,3]]", [[2, 0], [0, 3]]],
];
for (const [rows, seen, expected] of cases) {
  const matrix = new Matrix(rows.length, rows.length);
  rows.forEach((row, i) => row.forEach((value, j) => matrix.setValue(i, j, value)));
  const factor = matrix.choleskyDecomposition();
  const found = text(rows.map((row, i) => row.map((_, j) => factor.getValue(i, j))));
  console.log(`${(text(rows) + ":").padEnd(26)} ${found}, expected ${text(expected)}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(found === text(expected), rows[0][1] === 0);
  const product = expected.map((p) => expected.map((q) => p.reduce((sum, value, k) => sum + value * q[k], 0)));
  assert.equal(text(product), text(rows));
}
JAVASCRIPT
node cholesky.cjs
