#!/usr/bin/env bash
# kalman-filter 2.3.0: the Bhattacharyya distance of two states with equal means is 0, whatever their covariances.
#
# state.bhattacharyya(other) and state.obsBhattacharyya are documented to give the Bhattacharyya distance of two states,
# which are normal distributions. It is (1/8) d' S**-1 d + (1/2) log(det(S) / sqrt(det(S1) det(S2))), where d is the
# difference of the means, and S is the mean of the two covariances. It is 0 only for equal distributions. The code
# computes d' S**-1 d alone. So the part for the means is 8 times as large as it should be, and the part for the
# covariances is missing. Two states with equal means have a distance of 0, even if one of them is known much better.
# Nothing warns of it.
#
# A way around it: divide the result by 8, and add the logarithm.
#
# Seen with kalman-filter 2.3.0 on node 20.20:
#   means 0, 0; variances 1, 1:   0, expected 0
#   means 0, 0; variances 1, 100: 0, expected 0.8097
#   means 0, 2; variances 1, 1:   4, expected 0.5
#   means 0, 2; variances 1, 100: 0.0792, expected 0.8196
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit kalman-filter@2.3.0
cat > distance.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { State } = require("kalman-filter");

const round = (x) => Math.round(x * 1e4) / 1e4;
const normal = (mean, variance) => new State({ mean: [[mean]], covariance: [[variance]] });
const density = (x, mean, variance) =>
  Math.exp(-((x - mean) ** 2) / (2 * variance)) / Math.sqrt(2 * Math.PI * variance);
// By the definition: minus the logarithm of the integral of the square root of the product of the densities.
const integrate = (mean, variance) => {
  let sum = 0;
  for (let x = -100; x <= 100; x += 0.01) {
    sum += 0.01 * Math.sqrt(density(x, 0, 1) * density(x, mean, variance));
  }
  return -Math.log(sum);
};
for (const [mean, variance, seen] of [[0, 1, 0], [0, 100, 0], [2, 1, 4], [2, 100, 0.0792]]) {
  const result = normal(0, 1).bhattacharyya(normal(mean, variance));
  const [found, expected] = [round(result), round(integrate(mean, variance)) + 0];
  const name = `means 0, ${mean}; variances 1, ${variance}:`;
  console.log(`${name.padEnd(29)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(found === expected, mean === 0 && variance === 1);
  const repaired = result / 8 + 0.5 * Math.log((1 + variance) / 2 / Math.sqrt(variance));
  assert.equal(round(repaired), expected);
}
JAVASCRIPT
node distance.cjs
