#!/usr/bin/env bash
# @mathigon/fermat 1.1.24: the correlation of x and 2 x is 2/3 for three numbers, and 9/10 for ten.
#
# correlation is documented to calculate the correlation between the numbers in two arrays. One would expect 1 for points on a rising line,
# and -1 on a falling one. But covariance divides by the number of points, and the standard deviations divide by this number less 1. So all
# correlations of n points are too small by the factor (n - 1) / n. For the same reason, the covariance of an array with itself is not its
# variance. The documentation of covariance and variance does not say by what they divide, and nothing warns of it.
#
# A way around it: multiply the correlation by n / (n - 1).
#
# Seen with @mathigon/fermat 1.1.24 on node 20.20:
#   2 points, y = 2 x:   correlation 0.5, expected 1; covariance of x and x 0.25, variance of x 0.5
#   3 points, y = 2 x:   correlation 0.6667, expected 1; covariance of x and x 0.6667, variance of x 1
#   10 points, y = 2 x:  correlation 0.9, expected 1; covariance of x and x 8.25, variance of x 9.1667
#   3 points, y = -x:    correlation -0.6667, expected -1; covariance of x and x 0.6667, variance of x 1
#   4 points, y = x * x: correlation 0.7383, expected 0.9844; covariance of x and x 1.25, variance of x 1.6667
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @mathigon/fermat@1.1.24
cat > correlations.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { correlation, covariance, variance } from "@mathigon/fermat";

const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
const products = (x, y) => x.map((_, i) => (x[i] - mean(x)) * (y[i] - mean(y))).reduce((sum, z) => sum + z, 0);
const round = (x) => Math.round(x * 1e4) / 1e4;
const cases = [
  [2, "y = 2 x", (x) => 2 * x],
  [3, "y = 2 x", (x) => 2 * x],
  [10, "y = 2 x", (x) => 2 * x],
  [3, "y = -x", (x) => -x],
  [4, "y = x * x", (x) => x * x],
];
for (const [n, formula, f] of cases) {
  const x = Array.from({ length: n }, (_, i) => i + 1);
  const y = x.map(f);
  const expected = products(x, y) / Math.sqrt(products(x, x) * products(y, y));
  const [found, own, spread] = [correlation(x, y), covariance(x, x), variance(x)];
  const title = `${n} points, ${formula}:`.padEnd(20);
  console.log(
    `${title} correlation ${round(found)}, expected ${round(expected)};`,
    `covariance of x and x ${round(own)}, variance of x ${round(spread)}`,
  );
  assert.ok(Math.abs(found - (expected * (n - 1)) / n) < 1e-12, "the behaviour has changed");
  assert.ok(Math.abs(own - products(x, x) / n) < 1e-12, "the behaviour has changed");
  assert.ok(Math.abs(spread - products(x, x) / (n - 1)) < 1e-12, "the behaviour has changed");
}
JAVASCRIPT
node correlations.mjs
