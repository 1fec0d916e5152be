#!/usr/bin/env bash
# numpy-ts 1.4.0: irfft with a length of 10 instead of 8 gives NaN, and with a length of 4 other wrong numbers.
#
# numpy-ts is numpy for JavaScript. irfft(a, n) computes n real numbers from the non-negative frequencies of their Fourier transform, and n
# is documented as the length of the output. One would expect numpy's rule: of the frequencies a, the first n / 2 + 1 are used, and missing
# ones are zero. But the code copies all frequencies of a to the transform of length n, and fills the rest with their mirror images. If a
# has more than n / 2 + 1 frequencies, the surplus takes the places of the mirror images. If it has fewer, the code reads beyond the end of
# a and gets NaN. Nothing warns of it. Without n, and for the length that belongs to a, the result is right.
#
# A way around it: cut a, or append zeros to it, to n / 2 + 1 elements before the call.
#
# Seen with numpy-ts 1.4.0 on node 20.20, for a = [10, 1, 2, 3, 4]:
#   n = 8:  [3.25,0.396,1.25,1.104,1.25,1.104,1.25,0.396], expected [3.25,0.396,1.25,1.104,1.25,1.104,1.25,0.396]
#   n = 6:  [3.5,0.833,1.5,1.833,1.5,0.833], expected [3.167,1,1.667,1.5,1.667,1]
#   n = 4:  [4,2,2,2], expected [3.5,2,2.5,2]
#   n = 10: [NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN], expected [3,0.453,0.5,1.347,0.5,1.4,0.5,1.347,0.5,0.453]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numpy-ts@1.4.0
cat > transform.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import * as np from "numpy-ts";

const a = [10, 1, 2, 3, 4];
const text = (values) => `[${values.map((x) => Math.round(x * 1000) / 1000).join(",")}]`;
const near = (left, right) => left.every((x, i) => Math.abs(x - right[i]) < 1e-9);

/** The inverse transform of real frequencies by its definition, for an even n. */
function inverse(frequencies, n) {
  const used = Array.from({ length: n / 2 + 1 }, (_, k) => frequencies[k] ?? 0);
  const weight = (k) => (k === 0 || k === n / 2 ? 1 : 2);
  const sample = (t) => used.reduce((sum, x, k) => sum + weight(k) * x * Math.cos((2 * Math.PI * k * t) / n), 0) / n;
  return Array.from({ length: n }, (_, t) => sample(t));
}

for (const n of [8, 6, 4, 10]) {
  const [found, expected] = [np.fft.irfft(np.array(a), n).tolist(), inverse(a, n)];
  console.log(`${`n = ${n}:`.padEnd(7)} ${text(found)}, expected ${text(expected)}`);
  if (n === 10) assert.ok(found.length === n && found.every(Number.isNaN), "the behaviour has changed");
  else assert.ok(near(found, expected) === (n === 8), "the behaviour has changed");
  const cut = Array.from({ length: n / 2 + 1 }, (_, k) => a[k] ?? 0);
  assert.ok(near(np.fft.irfft(np.array(cut), n).tolist(), expected));
}
JAVASCRIPT
node transform.mjs
