#!/usr/bin/env bash
# ml-matrix 6.15.1: by Strassen's method, the product of a 2x3 matrix and a 3x2 matrix has three rows and three columns.
#
# mmulStrassen of ml-matrix is the product of two matrices by another method than mmul, and one would expect the same result but for
# roundings. For square matrices, it is. Matrices of different shapes are padded with zeros to a common one before the product, and the
# padding is not removed from the result. So the product of a 2x3 matrix and a 3x2 matrix is 3x3, with a row and a column of zeros too
# many, and the product of a row and a column is a matrix. Nothing warns of it.
#
# A way around it: a.mmulStrassen(b).subMatrix(0, a.rows - 1, 0, b.columns - 1).
#
# Seen with ml-matrix 6.15.1 on node 20.20:
#   2x2 times 2x2: mmul 2x2 [[7,10],[15,22]], mmulStrassen 2x2 [[7,10],[15,22]]
#   2x3 times 3x2: mmul 2x2 [[22,28],[49,64]], mmulStrassen 3x3 [[22,28,0],[49,64,0],[0,0,0]]
#   1x3 times 3x1: mmul 1x1 [[14]], mmulStrassen 3x3 [[14,0,0],[0,0,0],[0,0,0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ml-matrix@6.15.1
cat > multiply.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { Matrix } from "ml-matrix";

const cases = [
  [[[1, 2], [3, 4]], [[1, 2], [3, 4]], [[7, 10], [15, 22]]],
  [[[1, 2, 3], [4, 5, 6]], [[1, 2], [3, 4], [5, 6]], [[22, 28, 0], [49, 64, 0], [0, 0, 0]]],
  [[[1, 2, 3]], [[1], [2], [3]], [[14, 0, 0], [0, 0, 0], [0, 0, 0]]],
];
const shape = (matrix) => `${matrix.rows}x${matrix.columns}`;
const text = (matrix) => `${shape(matrix)} ${JSON.stringify(matrix.to2DArray())}`;
for (const [left, right, seen] of cases) {
  const [a, b] = [new Matrix(left), new Matrix(right)];
  const [product, strassen] = [a.mmul(b), a.mmulStrassen(b)];
  console.log(`${shape(a)} times ${shape(b)}: mmul ${text(product)}, mmulStrassen ${text(strassen)}`);
  assert.deepEqual(strassen.to2DArray(), seen, "the behaviour has changed");
  const part = strassen.subMatrix(0, a.rows - 1, 0, b.columns - 1);
  assert.deepEqual(part.to2DArray(), product.to2DArray());
}
JAVASCRIPT
node multiply.mjs
