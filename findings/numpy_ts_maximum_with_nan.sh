#!/usr/bin/env bash
# numpy-ts 1.4.0: the maximum of 1, NaN and 4 is 4, and of NaN, 1 and 4 it is NaN.
#
# numpy-ts is numpy for JavaScript. In numpy, max and min give NaN if any element is NaN, nanmax and nanmin ignore it, and one would expect
# the same here. numpy-ts has all four. But max keeps an element until a larger one comes, and no comparison with NaN is true. So a NaN at
# the first place stays to the end, and others are skipped. For 100 elements another code runs, and the NaN at the first place is skipped,
# too. Complex arrays give NaN in all cases, and maximum, the function of two arrays, does also. Nothing warns of it.
#
# A way around it: test np.any(np.isnan(array)) first.
#
# Seen with numpy-ts 1.4.0 on node 20.20:
#   NaN, 1, 4:            max NaN, min NaN, sum NaN, nanmax 4
#   1, NaN, 4:            max 4, min 1, sum NaN, nanmax 4
#   1, 4, NaN:            max 4, min 1, sum NaN, nanmax 4
#   NaN and 99 times 1:   max 1, min 1, sum NaN, nanmax 1
#   1, NaN, 4 as complex: max NaN, min NaN
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numpy-ts@1.4.0
cat > maximum.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import * as np from "numpy-ts";

const cases = [
  ["NaN, 1, 4", [NaN, 1, 4], NaN, NaN],
  ["1, NaN, 4", [1, NaN, 4], 4, 1],
  ["1, 4, NaN", [1, 4, NaN], 4, 1],
  ["NaN and 99 times 1", [NaN, ...Array(99).fill(1)], 1, 1],
];
for (const [name, values, largest, smallest] of cases) {
  const array = np.array(values);
  const [max, min, sum, nanmax] = [np.max(array), np.min(array), np.sum(array), np.nanmax(array)];
  console.log(`${(name + ":").padEnd(21)} max ${max}, min ${min}, sum ${sum}, nanmax ${nanmax}`);
  assert.ok(Object.is(max, largest) && Object.is(min, smallest), "the behaviour has changed");
  assert.ok(Number.isNaN(sum) && nanmax === Math.max(...values.filter((x) => !Number.isNaN(x))));
}
const complex = np.array([1, NaN, 4], "complex128");
const [max, min] = [np.max(complex).re, np.min(complex).re];
console.log(`1, NaN, 4 as complex: max ${max}, min ${min}`);
assert.ok(Number.isNaN(max) && Number.isNaN(min));
assert.ok(np.maximum(np.array([1, NaN, 4]), 0).tolist().some(Number.isNaN));
JAVASCRIPT
node maximum.mjs
