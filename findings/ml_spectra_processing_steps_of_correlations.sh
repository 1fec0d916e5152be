#!/usr/bin/env bash
# ml-spectra-processing 14.35.1: with a step of 3, the autocorrelation of a series is zero everywhere.
#
# xCrossCorrelation(a, b, { tau, lag }) multiplies a by shifted copies of b, for shifts from -lag to lag. tau is documented as the size of
# the step, from 1 to the length of a, so one would expect every third value of the result for tau = 3. But the code computes the positions
# of the values in the result by a division by tau, and unless the length minus lag, plus 1, is a multiple of tau, these are fractions. A
# Float64Array drops what is written there, and the result is zero everywhere. With the default, a lag of the length minus 1, this happens
# for all steps above 2. Nothing warns of it. xAutoCorrelation(a) is the same with b = a.
#
# A way around it: tau = 1, and then every third value.
#
# Seen with ml-spectra-processing 14.35.1 on node 20.20, for the autocorrelation of 1, 2, 3, 4:
#   tau 1, lag 2: [11,20,30,20,11], expected [11,20,30,20,11]
#   tau 2, lag 3: [4,20,20,4], expected [4,20,20,4]
#   tau 2, lag 2: [0,0,0], expected [11,30,11]
#   tau 3, lag 3: [0,0,0], expected [4,30,4]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ml-spectra-processing@14.35.1
cat > correlate.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { xAutoCorrelation, xCrossCorrelation } from "ml-spectra-processing";

const series = [1, 2, 3, 4];
const shifted = (shift) => series.reduce((sum, value, i) => sum + value * (series[i + shift] ?? 0), 0);
const cases = [
  [1, 2, [11, 20, 30, 20, 11]],
  [2, 3, [4, 20, 20, 4]],
  [2, 2, [0, 0, 0]],
  [3, 3, [0, 0, 0]],
];
for (const [tau, lag, seen] of cases) {
  const found = Array.from(xAutoCorrelation(series, { tau, lag }));
  const expected = [];
  for (let shift = -lag; shift <= lag; shift += tau) expected.push(shifted(shift));
  console.log(`tau ${tau}, lag ${lag}: ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  assert.equal(String(found) === String(expected), seen[0] !== 0);
  assert.deepEqual(Array.from(xCrossCorrelation(series, series, { tau, lag })), found);
  const all = Array.from(xAutoCorrelation(series, { tau: 1, lag }));
  assert.deepEqual(all.filter((_, i) => i % tau === 0), expected);
}
JAVASCRIPT
node correlate.mjs
