#!/usr/bin/env bash
# @josh-brown/vector 4.2.0: the Kronecker product of the identity and a matrix is not block-diagonal.
#
# kroneckerProduct is documented as the Kronecker product of two matrices A and B: in place of each element of A it has a copy of B times
# this element. One would expect the identity times B to have B twice on its diagonal. But the code makes a block of each column of A and
# each row of B, their outer product. These are the same products in other places. So the identity times B has all elements of B in its
# first row, and again in its last one. The shape may be wrong, too: a row times a row is a matrix. Nothing warns of it. A column times a
# row is right.
#
# A way around it: a.flatMap((row) => b.map((other) => row.flatMap((x) => other.map((y) => x * y)))) for arrays a and b of rows.
#
# Seen with @josh-brown/vector 4.2.0 on node 20.20:
#   [[1,0],[0,1]] and [[5,6],[7,8]]:
#     found    [[5,6,7,8],[0,0,0,0],[0,0,0,0],[5,6,7,8]]
#     expected [[5,6,0,0],[7,8,0,0],[0,0,5,6],[0,0,7,8]]
#   [[1,2]] and [[5,6],[7,8]]:
#     found    [[5,6,7,8],[10,12,14,16]]
#     expected [[5,6,10,12],[7,8,14,16]]
#   [[1,2]] and [[3,4]]:
#     found    [[3,4],[6,8]]
#     expected [[3,4,6,8]]
#   [[1],[2]] and [[3,4]]:
#     found    [[3,4],[6,8]]
#     expected [[3,4],[6,8]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @josh-brown/vector@4.2.0
cat > multiply.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { kroneckerProduct, mat } from "@josh-brown/vector";

const expand = (a, b) => a.flatMap((row) => b.map((other) => row.flatMap((x) => other.map((y) => x * y))));
const cases = [
  [[[1, 0], [0, 1]], [[5, 6], [7, 8]], [[5, 6, 7, 8], [0, 0, 0, 0], [0, 0, 0, 0], [5, 6, 7, 8]]],
  [[[1, 2]], [[5, 6], [7, 8]], [[5, 6, 7, 8], [10, 12, 14, 16]]],
  [[[1, 2]], [[3, 4]], [[3, 4], [6, 8]]],
  [[[1], [2]], [[3, 4]], [[3, 4], [6, 8]]],
];
for (const [a, b, seen] of cases) {
  const found = kroneckerProduct(mat(a), mat(b)).toArray();
  console.log(`${JSON.stringify(a)} and ${JSON.stringify(b)}:`);
  console.log(`  found    ${JSON.stringify(found)}`);
  console.log(`  expected ${JSON.stringify(expand(a, b))}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
}
JAVASCRIPT
node multiply.mjs
