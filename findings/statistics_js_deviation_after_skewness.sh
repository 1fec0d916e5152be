#!/usr/bin/env bash
# statistics.js 1.0.0: the standard deviation of a column is 3.54, and after a call of skewness it is 3.16.
#
# The functions of the package take an array, or the name of a column, for which they store their results. standardDeviation and variance
# have a parameter for the correction of samples, true by default, by which the sum is divided by n - 1 and not n. One would expect a call
# with the same arguments to give the same number. But the stored result does not depend on the parameter. skewness calls standardDeviation
# without the correction, so afterwards the default is without it too, kurtosis is another number, and skewness(column, true) ignores its
# own parameter. Nothing warns of it. For arrays, all is right.
#
# A way around it: statistics.getColumn(name), and the array instead of the name.
#
# Seen with statistics.js 1.0.0 on node 20.20, for the numbers 1, 2, 3, 4 and 10:
#   in a new object:       standardDeviation 3.54, kurtosis 1.78, adjusted skewness 2.37
#   after skewness:        standardDeviation 3.16, kurtosis 2.79, adjusted skewness 1.14
#   the array, either way: standardDeviation 3.54, kurtosis 1.78, adjusted skewness 2.37
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit statistics.js@1.0.0
cat > deviation.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const Statistics = require("statistics.js");

const numbers = [1, 2, 3, 4, 10];
const round = (x) => Math.round(x * 100) / 100;
const functions = [
  ["standardDeviation", (statistics, data) => statistics.standardDeviation(data)],
  ["kurtosis", (statistics, data) => statistics.kurtosis(data)],
  ["adjusted skewness", (statistics, data) => statistics.skewness(data, true)],
];
const results = (data, first) =>
  functions
    .map(([name, f]) => {
      const statistics = new Statistics(numbers.map((x) => ({ x })), { x: "metric" });
      if (first) assert.equal(round(statistics.skewness(data)), 1.14);
      return `${name} ${round(f(statistics, data))}`;
    })
    .join(", ");
const right = "standardDeviation 3.54, kurtosis 1.78, adjusted skewness 2.37";
const [fresh, after, array] = [results("x", false), results("x", true), results(numbers, true)];
console.log(`in a new object:       ${fresh}`);
console.log(`after skewness:        ${after}`);
console.log(`the array, either way: ${array}`);
const mean = numbers.reduce((sum, x) => sum + x) / 5;
const squares = numbers.reduce((sum, x) => sum + (x - mean) ** 2, 0);
assert.deepEqual([round(Math.sqrt(squares / 4)), round(Math.sqrt(squares / 5))], [3.54, 3.16]);
assert.deepEqual([fresh, array, results(numbers, false)], [right, right, right]);
const wrong = "standardDeviation 3.16, kurtosis 2.79, adjusted skewness 1.14";
assert.equal(after, wrong, "the behaviour has changed");
JAVASCRIPT
node deviation.cjs
