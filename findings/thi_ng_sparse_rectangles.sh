#!/usr/bin/env bash
# @thi.ng/sparse 0.3.120: the sparse matrix made from 1 2 3, 4 5 6 has the rows 1 2 0 and 3 4 0.
#
# CSR.fromDense(m, n, elements) is documented to make a matrix of m rows and n columns from its elements, row by row. One would expect
# element k to be in row k / n and column k % n. For square matrices it is. Otherwise the elements are read as n rows of m elements. So a
# matrix of 2x3 elements loses two of them, and toDense of one of 3x2 elements gives eight. mulV, the product with a vector, demands a
# vector with as many elements as the matrix has rows, and not columns, so it raises an error for the right one, also if the matrix is
# right. Apart from this error, nothing warns of it. COO and CSC are made rightly from rectangles.
#
# A way around it: COO.fromDense(m, n, elements).toCSR() if no row is empty, and mulV of the COO.
#
# Seen with @thi.ng/sparse 0.3.120 on node 20.20, for COO and CSR of the same shape and elements:
#   2x3: COO [1,2,3,4,5,6], CSR [1,2,0,3,4,0]; times ones: COO [6,15], CSR Assertion failed: vector length != 2
#   3x2: COO [1,2,3,4,5,6], CSR [1,2,3,4,5,6,0,0]; times ones: COO [3,7,11], CSR Assertion failed: vector length != 3
#   2x2: COO [1,2,3,4], CSR [1,2,3,4]; times ones: COO [3,7], CSR [3,7]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @thi.ng/sparse@0.3.120
cat > rectangles.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { COO, CSR } from "@thi.ng/sparse";

const cases = [
  [2, 3, "[1,2,0,3,4,0]", "Assertion failed: vector length != 2"],
  [3, 2, "[1,2,3,4,5,6,0,0]", "Assertion failed: vector length != 3"],
  [2, 2, "[1,2,3,4]", "[3,7]"],
];
const attempt = (f) => {
  try {
    return JSON.stringify(f());
  } catch (error) {
    return error.message;
  }
};
for (const [m, n, seen, times] of cases) {
  const elements = Array.from({ length: m * n }, (_, k) => k + 1);
  const ones = new Array(n).fill(1);
  const [coo, csr] = [COO, CSR].map((kind) => kind.fromDense(m, n, elements));
  assert.deepEqual(coo.toDense(), elements);
  assert.deepEqual(coo.toCSR().toDense(), elements);
  const [dense, product] = [csr.toDense(), csr.mulV.bind(csr, ones)];
  const [right, found] = [coo.mulV(ones), attempt(product)];
  console.log(
    `${m}x${n}: COO ${JSON.stringify(elements)}, CSR ${JSON.stringify(dense)}; ` +
      `times ones: COO ${JSON.stringify(right)}, CSR ${found}`,
  );
  assert.deepEqual([JSON.stringify(dense), found], [seen, times], "the behaviour has changed");
  assert.equal(JSON.stringify(dense) === JSON.stringify(elements), m === n);
  assert.equal(found === JSON.stringify(right), m === n);
  assert.equal(attempt(() => coo.toCSR().mulV(ones)), found);
}
JAVASCRIPT
node rectangles.mjs
