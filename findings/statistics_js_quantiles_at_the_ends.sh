#!/usr/bin/env bash
# statistics.js 1.0.0: the quantiles of 1, 2, 3, 4 for 0 and 1 are NaN.
#
# quantile(data, p) of the package is documented for a p between 0 and 1, and the message of its error for other numbers says that the
# range is [0, 1]. One would expect the smallest element for 0 and the largest one for 1. If p times the number of elements is an integer
# k, the result is the mean of the elements k - 1 and k in order. For p = 0, the first of the two does not exist, and for p = 1 the second
# one does not. So the result is NaN for all data. gastwirthCohenMean with alpha = 0, whose range includes 0 too, is NaN for this reason.
# Nothing warns of it.
#
# A way around it: minimum and maximum.
#
# Seen with statistics.js 1.0.0 on node 20.20, for the numbers 1, 2, 3 and 4:
#   p = 0:    quantile NaN, expected 1
#   p = 0.25: quantile 1.5, expected 1.5
#   p = 0.9:  quantile 4, expected 4
#   p = 1:    quantile NaN, expected 4
#   gastwirthCohenMean with alpha = 0: NaN, expected 2.5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit statistics.js@1.0.0
cat > quantiles.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const Statistics = require("statistics.js");

const numbers = [1, 2, 3, 4];
const statistics = new Statistics([{ x: 1 }], { x: "metric" });
const cases = [
  [0, NaN, statistics.minimum(numbers)],
  [0.25, 1.5, 1.5],
  [0.9, 4, 4],
  [1, NaN, statistics.maximum(numbers)],
];
for (const [p, seen, expected] of cases) {
  const found = statistics.quantile(numbers, p);
  console.log(`${`p = ${p}:`.padEnd(9)} quantile ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
}
const mean = statistics.gastwirthCohenMean(numbers, { alpha: 0 });
console.log(`gastwirthCohenMean with alpha = 0: ${mean}, expected 2.5`);
assert.equal(mean, NaN, "the behaviour has changed");
const ends = statistics.minimum(numbers) + statistics.maximum(numbers);
assert.equal(0.25 * ends + 0.5 * statistics.median(numbers), 2.5);
JAVASCRIPT
node quantiles.cjs
