#!/usr/bin/env bash
# @rayyamhk/matrix 1.0.8: the rank of 0 1, 0 1 is 2, although it has one column of zeros.
#
# rank() is documented to calculate the dimension of the row space. It counts the rows of the factor R of a QR
# decomposition that are not zero. This is the rank only if the decomposition exchanges columns, which that one does
# not. Where a column depends on those before it, R has a zero on the diagonal, and the same row may go on with other
# elements, and so may the next one. So the rank is too large, for example for the rows 1 1 1, 1 1 2, 1 1 3, and it
# differs from that of the transpose. nullity(), the dimension of the null space, is too small by as much: 0 means that
# only zero is mapped to zero, although (1, 0) is. Nothing warns of it.
#
# A way around it: count the eigenvalues of the product of the transpose and the matrix that are not zero.
#
# Seen with @rayyamhk/matrix 1.0.8 on node 20.20:
#   [[0,1],[0,1]]:             rank 2, nullity 0, rank of the transpose 1, expected 1, 1 and 1
#   [[1,1,1],[1,1,2],[1,1,3]]: rank 3, nullity 0, rank of the transpose 2, expected 2, 1 and 2
#   [[0,1],[0,2],[0,3]]:       rank 2, nullity 0, rank of the transpose 1, expected 1, 1 and 1
#   [[1,2],[2,4]]:             rank 1, nullity 1, rank of the transpose 1, expected 1, 1 and 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @rayyamhk/matrix@1.0.8
cat > rank.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const Matrix = require("@rayyamhk/matrix");

const cases = [
  [[[0, 1], [0, 1]], [2, 0, 1], 1],
  [[[1, 1, 1], [1, 1, 2], [1, 1, 3]], [3, 0, 2], 2],
  [[[0, 1], [0, 2], [0, 3]], [2, 0, 1], 1],
  [[[1, 2], [2, 4]], [1, 1, 1], 1],
];
for (const [rows, seen, rank] of cases) {
  const matrix = new Matrix(rows);
  const found = [matrix.rank(), matrix.nullity(), Matrix.transpose(matrix).rank()];
  const expected = [rank, rows[0].length - rank, rank];
  const text = `rank ${found[0]}, nullity ${found[1]}, rank of the transpose ${found[2]}`;
  const right = `${expected[0]}, ${expected[1]} and ${expected[2]}`;
  console.log(`${(JSON.stringify(rows) + ":").padEnd(26)} ${text}, expected ${right}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  assert.equal(found[0] === rank, rows[0][0] === 1 && rows[0][1] === 2);
  const gram = Matrix.multiply(Matrix.transpose(matrix), matrix);
  assert.equal(gram.eigenvalues().filter((value) => value.getModulus() > 1e-6).length, rank);
}
JAVASCRIPT
node rank.cjs
