#!/usr/bin/env bash
# @mathigon/fermat 1.1.24: the determinant of a 4x4 matrix is wrong.
#
# Matrix.determinant is documented to calculate the determinant of a matrix, and refuses matrices that are not square. One would expect it
# to work for all sizes. It adds the products along the diagonals to the right and subtracts those to the left. This is the rule of Sarrus,
# which is true for 3x3 matrices only: the determinant of a 4x4 matrix has 24 terms, and this sum has 8. Some of the 8 have the wrong sign,
# too. So a matrix that swaps two coordinates has the determinant 0, although it has an inverse, and an upper triangular matrix may be
# right. Matrix.inverse is right. Nothing warns of it.
#
# A way around it: expand the determinant along the first row into determinants of 3x3 matrices.
#
# Seen with @mathigon/fermat 1.1.24 on node 20.20:
#   3x3, tridiagonal:       4, expected 4
#   4x4, upper triangular:  24, expected 24
#   4x4, tridiagonal:       15, expected 5
#   4x4, first two swapped: 0, expected -1
#   4x4, cycle of all:      1, expected -1
#   5x5, tridiagonal:       32, expected 6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @mathigon/fermat@1.1.24
cat > determinants.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { Matrix } from "@mathigon/fermat";

const matrix = (n, element) => Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => element(i, j)));
const tridiagonal = (n) => matrix(n, (i, j) => (i === j ? 2 : Math.abs(i - j) === 1 ? -1 : 0));
const permutation = (columns) => matrix(columns.length, (i, j) => Number(columns[i] === j));

/** The determinant by expansion along the first row. */
function expand(rows) {
  if (rows.length === 1) return rows[0][0];
  const minor = (column) => rows.slice(1).map((row) => row.filter((_, j) => j !== column));
  return rows[0].reduce((sum, x, column) => sum + (-1) ** column * x * expand(minor(column)), 0);
}

const cases = [
  ["3x3, tridiagonal", tridiagonal(3), 4],
  ["4x4, upper triangular", matrix(4, (i, j) => (j < i ? 0 : j + 1)), 24],
  ["4x4, tridiagonal", tridiagonal(4), 15],
  ["4x4, first two swapped", permutation([1, 0, 2, 3]), 0],
  ["4x4, cycle of all", permutation([1, 2, 3, 0]), 1],
  ["5x5, tridiagonal", tridiagonal(5), 32],
];
for (const [name, rows, seen] of cases) {
  const [found, expected] = [Matrix.determinant(rows), expand(rows)];
  console.log(`${(name + ":").padEnd(23)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  const identity = Matrix.product(rows, Matrix.inverse(rows));
  assert.ok(identity.every((row, i) => row.every((x, j) => Math.abs(x - Number(i === j)) < 1e-12)));
}
JAVASCRIPT
node determinants.mjs
