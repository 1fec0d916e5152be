#!/usr/bin/env bash
# numpy-ts 1.4.0: the norms 1, 2 and infinity of a matrix are the norms of its elements as a vector.
#
# numpy-ts is numpy for JavaScript, and its linalg.norm is documented as "General norm function (for both vectors and matrices)". One would
# expect the matrix norms of numpy for an array of two dimensions: the largest sum of a column for 1, the largest singular value for 2, and
# the largest sum of a row for infinity. But if no axes are given, the code takes the vector norm of all elements, as it does for an array
# of one dimension: their sum, the root of the sum of squares, and the largest element. Only "fro" and "nuc" are matrix norms. With both
# axes given, all norms are right. Nothing warns of it.
#
# A way around it: np.linalg.norm(matrix, order, [0, 1]) or np.linalg.matrix_norm(matrix, order).
#
# Seen with numpy-ts 1.4.0 on node 20.20, for the matrix [[3, 0], [4, 5]]:
#   order 1:         norm 12, with axes 7, matrix_norm 7, expected 7
#   order 2:         norm 7.071, with axes 6.708, matrix_norm 6.708, expected 6.708
#   order Infinity:  norm 5, with axes 9, matrix_norm 9, expected 9
#   order -Infinity: norm 0, with axes 3, matrix_norm 3, expected 3
#   order fro:       norm 7.071, with axes 7.071, matrix_norm 7.071, expected 7.071
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numpy-ts@1.4.0
cat > norms.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import * as np from "numpy-ts";

const rows = [[3, 0], [4, 5]];
const matrix = np.array(rows);
const sums = rows.map((row) => row.reduce((sum, x) => sum + Math.abs(x), 0));
const columnSums = rows[0].map((_, j) => rows.reduce((sum, row) => sum + Math.abs(row[j]), 0));
const squares = rows.flat().reduce((sum, x) => sum + x * x, 0);
const determinant = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0];
const round = (x) => Math.round(x * 1000) / 1000;

// The squares of the two singular values have the sum of squares as their sum and the squared determinant as their product.
const largest = Math.sqrt((squares + Math.sqrt(squares ** 2 - 4 * determinant ** 2)) / 2);
const cases = [
  [1, Math.max(...columnSums), 12],
  [2, largest, Math.sqrt(squares)],
  [Infinity, Math.max(...sums), 5],
  [-Infinity, Math.min(...sums), 0],
  ["fro", Math.sqrt(squares), Math.sqrt(squares)],
];
for (const [order, expected, seen] of cases) {
  const found = np.linalg.norm(matrix, order);
  const others = [np.linalg.norm(matrix, order, [0, 1]), np.linalg.matrix_norm(matrix, order)];
  const [withAxes, matrixNorm] = others.map(round);
  console.log(
    `${`order ${order}:`.padEnd(16)} norm ${round(found)}, with axes ${withAxes}, matrix_norm ${matrixNorm},`,
    `expected ${round(expected)}`,
  );
  assert.ok(Math.abs(found - seen) < 1e-9, "the behaviour has changed");
  others.forEach((norm) => assert.ok(Math.abs(norm - expected) < 1e-9));
}
JAVASCRIPT
node norms.mjs
