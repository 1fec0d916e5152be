#!/usr/bin/env bash
# ml-sparse-matrix 3.1.0: the product of the elements 5 and 0 is 5.
#
# a.mul(b) of two sparse matrices multiplies element by element. One would expect the elements of a dense product: zero wherever a or b
# is zero, as ml-matrix of the same authors gives. But mul only visits the elements that b stores. Where b has a zero, a keeps its
# element. In the same way a.and(b) keeps it, and a.div(b) divides by everything but the zeros. Since a zero of a is kept in any case,
# a.mul(b) and b.mul(a) differ. Nothing warns of it.
#
# A way around it: set the elements of a to zero where b.get(i, j) is zero, before the product.
#
# Seen with ml-sparse-matrix 3.1.0 and ml-matrix 6.15.1 on node 20.20, for a = [[5,6],[7,8]] and b = [[0,2],[3,0]]:
#   a.mul(b): sparse [[5,12],[21,8]], dense [[0,12],[21,0]]
#   b.mul(a): sparse [[0,12],[21,0]], dense [[0,12],[21,0]]
#   a.and(b): sparse [[5,2],[3,8]], dense [[0,2],[3,0]]
#   b.and(a): sparse [[0,2],[3,0]], dense [[0,2],[3,0]]
#   a.add(b): sparse [[5,8],[10,8]], dense [[5,8],[10,8]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ml-sparse-matrix@3.1.0 ml-matrix@6.15.1
cat > multiply.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { Matrix } from "ml-matrix";
import { SparseMatrix } from "ml-sparse-matrix";

const a = [[5, 6], [7, 8]];
const b = [[0, 2], [3, 0]];
const cases = [
  ["a.mul(b)", "mul", a, b, [[5, 12], [21, 8]]],
  ["b.mul(a)", "mul", b, a, [[0, 12], [21, 0]]],
  ["a.and(b)", "and", a, b, [[5, 2], [3, 8]]],
  ["b.and(a)", "and", b, a, [[0, 2], [3, 0]]],
  ["a.add(b)", "add", a, b, [[5, 8], [10, 8]]],
];
for (const [name, operation, left, right, seen] of cases) {
  const sparse = new SparseMatrix(left)[operation](new SparseMatrix(right)).to2DArray();
  const dense = new Matrix(left)[operation](new Matrix(right)).to2DArray();
  console.log(`${name}: sparse ${JSON.stringify(sparse)}, dense ${JSON.stringify(dense)}`);
  assert.deepEqual(sparse, seen, "the behaviour has changed");
  const agree = JSON.stringify(sparse) === JSON.stringify(dense);
  assert.equal(agree, !["a.mul(b)", "a.and(b)"].includes(name), "the behaviour has changed");
}
JAVASCRIPT
node multiply.mjs
