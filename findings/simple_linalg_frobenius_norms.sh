#!/usr/bin/env bash
# simple-linalg 1.5.0: the Frobenius norm of the matrix 3 4, 0 0 is 7, and of 3 -3, 0 0 it is 0.
#
# frobenius of the package is documented to calculate the Frobenius norm of the given matrices, where the second one is optional. One would
# expect frobenius(a) to be the square root of the sum of the squares, and frobenius(a, b) to be that of a - b. For two matrices it is. For
# one, the elements are added up as they are. So the norm can be 0 for a matrix that is not, or negative, and frobenius(a) differs from
# frobenius(a, 0). Nothing warns of it.
#
# A way around it: frobenius(a, zeros(rows, columns)).
#
# Seen with simple-linalg 1.5.0 on node 20.20:
#   3 4, 0 0:  frobenius(a) 7, frobenius(a, 0) 5, expected 5
#   3 -3, 0 0: frobenius(a) 0, frobenius(a, 0) 4.24, expected 4.24
#   -1 0, 0 0: frobenius(a) -1, frobenius(a, 0) 1, expected 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit simple-linalg@1.5.0
cat > norms.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { frobenius, zeros } = require("simple-linalg");

const cases = [
  [[[3, 4], [0, 0]], 7],
  [[[3, -3], [0, 0]], 0],
  [[[-1, 0], [0, 0]], -1],
];
const round = (x) => Math.round(x * 100) / 100;
for (const [a, seen] of cases) {
  const [found, ofDifference] = [frobenius(a), round(frobenius(a, zeros(2, 2)))];
  const expected = round(Math.hypot(...a.flat()));
  const name = `${a.map((row) => row.join(" ")).join(", ")}:`;
  console.log(`${name.padEnd(10)} frobenius(a) ${found}, frobenius(a, 0) ${ofDifference}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(ofDifference, expected);
  assert.notEqual(round(found), expected);
}
JAVASCRIPT
node norms.cjs
