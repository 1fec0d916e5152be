#!/usr/bin/env bash
# @jax-js/jax 0.1.25: argmax of an array of three elements with a NaN is 3.
#
# jax-js is jax for JavaScript, and argmax gives the index of the largest element. In numpy and jax, a NaN counts as the largest, so one
# would expect the index of the NaN, or at least an index of the array. But the code looks for the elements that are equal to the maximum.
# The maximum is NaN, no element is equal to it, and the result is the length of the array, one more than the last index. argmin and an axis
# have the same problem, and nothing warns of it. nanargmax, which ignores NaN, is right.
#
# A way around it: np.argmax(np.where(np.isnan(x.ref), Infinity, x)).
#
# Seen with @jax-js/jax 0.1.25 on node 20.20, on the CPU:
#   1, NaN, 4: argmax 3, argmin 3, expected 1; nanargmax 2
#   NaN, 1:    argmax 2, argmin 2, expected 0; nanargmax 1
#   4, 1, 2:   argmax 0, argmin 1, expected 0 and 1; nanargmax 0
#   1, NaN and 3, 4 along axis 1: argmax 2,1, expected 1,1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @jax-js/jax@0.1.25
cat > positions.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { defaultDevice, init, numpy as np } from "@jax-js/jax";

await init("cpu");
defaultDevice("cpu");
const cases = [
  [[1, NaN, 4], 3, 3, "1", 2],
  [[NaN, 1], 2, 2, "0", 1],
  [[4, 1, 2], 0, 1, "0 and 1", 0],
];
for (const [values, largest, smallest, expected, ignoring] of cases) {
  const x = () => np.array(values);
  const [argmax, argmin, nanargmax] = [await np.argmax(x()).js(), await np.argmin(x()).js(), await np.nanargmax(x()).js()];
  const title = `${values.join(", ")}:`.padEnd(10);
  console.log(`${title} argmax ${argmax}, argmin ${argmin}, expected ${expected}; nanargmax ${nanargmax}`);
  assert.deepEqual([argmax, argmin], [largest, smallest], "the behaviour has changed");
  assert.equal(nanargmax, ignoring);
}
const rows = await np.argmax(np.array([[1, NaN], [3, 4]]), 1).js();
console.log(`1, NaN and 3, 4 along axis 1: argmax ${rows.join(",")}, expected 1,1`);
assert.deepEqual([...rows], [2, 1], "the behaviour has changed");
JAVASCRIPT
node positions.mjs
