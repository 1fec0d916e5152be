#!/usr/bin/env bash
# @thi.ng/sparse 0.3.120: converted to compressed rows, diag(1, 0, 2) has its 2 in the second row.
#
# COO of the package is a sparse matrix as a list of elements with their positions, and toCSR and toCSC convert it to compressed rows or
# columns. One would expect the same matrix. The start of a row is stored only when the row of an element differs from that of the element
# before, so a row without elements gets no start, and all rows below it move up. toCSC does the same to columns. Products with a vector are
# then wrong. Nothing warns of it. Matrices with elements in each row and column are right, as CSR.fromDense is for square matrices.
#
# A way around it: CSR.empty, then setAt for each of the nzEntries.
#
# Seen with @thi.ng/sparse 0.3.120 on node 20.20, for products with the vector (1, 10, 100):
#   diag(1, 0, 2):       toCSR [1,200,0], toCSC [1,0,20], expected [1,0,200]
#   1 2 0, 0 0 0, 0 3 4: toCSR [21,430,0], toCSC [21,0,430], expected [21,0,430]
#   1 0 2, 0 0 3, 4 0 0: toCSR [201,300,4], toCSC [21,30,4], expected [201,300,4]
#   1 0 0, 5 2 0, 0 0 4: toCSR [1,25,400], toCSC [1,25,400], expected [1,25,400]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @thi.ng/sparse@0.3.120
cat > rows.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { COO, CSR } from "@thi.ng/sparse";

const cases = [
  [[1, 0, 0, 0, 0, 0, 0, 0, 2], "[1,200,0]", "[1,0,20]", "diag(1, 0, 2)"],
  [[1, 2, 0, 0, 0, 0, 0, 3, 4], "[21,430,0]", "[21,0,430]"],
  [[1, 0, 2, 0, 0, 3, 4, 0, 0], "[201,300,4]", "[21,30,4]"],
  [[1, 0, 0, 5, 2, 0, 0, 0, 4], "[1,25,400]", "[1,25,400]"],
];
const vector = [1, 10, 100];
for (const [elements, rows, columns, name] of cases) {
  const lines = [0, 3, 6].map((start) => elements.slice(start, start + 3));
  const expected = JSON.stringify(lines.map((line) => line.reduce((sum, value, k) => sum + value * vector[k], 0)));
  const coo = COO.fromDense(3, 3, elements);
  const [csr, csc] = [coo.toCSR(), coo.toCSC()].map((matrix) => JSON.stringify(matrix.mulV(vector)));
  const label = name ?? lines.map((line) => line.join(" ")).join(", ");
  console.log(`${(label + ":").padEnd(20)} toCSR ${csr}, toCSC ${csc}, expected ${expected}`);
  assert.deepEqual([csr, csc], [rows, columns], "the behaviour has changed");
  const full = (lists) => lists.every((list) => list.some((value) => value !== 0));
  assert.equal(csr === expected, full(lines));
  assert.equal(csc === expected, full([0, 1, 2].map((k) => lines.map((line) => line[k]))));
  assert.equal(JSON.stringify(coo.mulV(vector)), expected);
  assert.equal(JSON.stringify(CSR.fromDense(3, 3, elements).mulV(vector)), expected);
}
JAVASCRIPT
node rows.mjs
