#!/usr/bin/env bash
# @d4c/numjs 0.17.35: the slice 8:2:-2 of the numbers from 0 to 9 is [9].
#
# @d4c/numjs has numpy's arrays for JavaScript. x.slice([start, stop, step]) should be numpy's x[start:stop:step], and its README says that
# slices work exactly as in numpy. One would expect the slice 8:2:-2 of 0, 1, ..., 9 to be 8, 6, 4. But for a negative step, the first
# number is taken as the end of the range, and the second one as its beginning. The slice starts just below the second number, or at the
# last element if the second number is below the first one. If one of the two is null, the slice starts just below the other one. Slices
# without a start and a stop are right. Nothing warns of it.
#
# A way around it: a slice with a positive step, and [null, null, -1] of the result.
#
# Seen with @d4c/numjs 0.17.35 on node 20.20. Expected is the rule of numpy, written out as a loop:
#   [2,8,2]:        [2,4,6], expected [2,4,6]
#   [8,2,-2]:       [9], expected [8,6,4]
#   [8,2,-1]:       [9,8], expected [8,7,6,5,4,3]
#   [2,8,-1]:       [7,6,5,4,3,2], expected []
#   [5,null,-1]:    [4,3,2,1,0], expected [5,4,3,2,1,0]
#   [null,5,-1]:    [4,3,2,1,0], expected [9,8,7,6]
#   [null,null,-2]: [9,7,5,3,1], expected [9,7,5,3,1]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @d4c/numjs@0.17.35
cat > slices.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import numjs from "@d4c/numjs";

const nj = numjs.default ?? numjs;
const x = nj.arange(10);
const cases = [
  [[2, 8, 2], [2, 4, 6]],
  [[8, 2, -2], [9]],
  [[8, 2, -1], [9, 8]],
  [[2, 8, -1], [7, 6, 5, 4, 3, 2]],
  [[5, null, -1], [4, 3, 2, 1, 0]],
  [[null, 5, -1], [4, 3, 2, 1, 0]],
  [[null, null, -2], [9, 7, 5, 3, 1]],
];
const right = ["[2,8,2]", "[null,null,-2]"];
for (const [slice, seen] of cases) {
  const [start, stop, step] = slice;
  const expected = [];
  for (let i = start ?? (step > 0 ? 0 : 9); step > 0 ? i < (stop ?? 10) : i > (stop ?? -1); i += step) expected.push(i);
  const found = x.slice(slice).tolist();
  const name = JSON.stringify(slice);
  console.log(`${(name + ":").padEnd(15)} ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  assert.equal(JSON.stringify(found) === JSON.stringify(expected), right.includes(name));
}
JAVASCRIPT
node slices.mjs
