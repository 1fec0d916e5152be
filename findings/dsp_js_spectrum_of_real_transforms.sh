#!/usr/bin/env bash
# dsp.js 1.0.1: RFFT finds a sine of 3 periods in the band of 2 periods.
#
# RFFT is the Fourier transform for real signals, and spectrum holds the magnitudes of the bands, as for FFT and DFT.
# One would expect the same numbers from all of them. The transform itself, in trans, is right: it has the real parts in
# the first half, and the imaginary parts in the second half, backwards. The magnitudes take the real part of a band
# together with the imaginary part of the next one. So a sine shows up one band too low, a cosine in the right band, and
# any other phase in both of them. peakBand and peak are found among these magnitudes. Nothing warns of it.
#
# A way around it: FFT, or the magnitudes from trans[k] and trans[size - k].
#
# Seen with dsp.js 1.0.1 on node 20.20, for 16 samples:
#   sine of 3 periods:   RFFT 0 0 1 0 0, peak in band 2; FFT 0 0 0 1 0, peak in band 3; from trans 0 0 0 1 0
#   cosine of 3 periods: RFFT 0 0 0 1 0, peak in band 3; FFT 0 0 0 1 0, peak in band 3; from trans 0 0 0 1 0
#   sine + cosine / 2:   RFFT 0 0 1 0.5 0, peak in band 2; FFT 0 0 0 1.118 0, peak in band 3; from trans 0 0 0 1.118 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit dsp.js@1.0.1
cat > spectrum.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { FFT, RFFT } = require("dsp.js");

const size = 16;
const text = (magnitudes) => magnitudes.slice(0, 5).map((x) => Math.round(x * 1e4) / 1e4).join(" ");
const cases = [
  ["sine of 3 periods", Math.sin, "0 0 1 0 0", "0 0 0 1 0"],
  ["cosine of 3 periods", Math.cos, "0 0 0 1 0", "0 0 0 1 0"],
  ["sine + cosine / 2", (x) => Math.sin(x) + Math.cos(x) / 2, "0 0 1 0.5 0", "0 0 0 1.118 0"],
];
for (const [name, wave, seen, expected] of cases) {
  const signal = Float64Array.from({ length: size }, (_, t) => wave((6 * Math.PI * t) / size));
  const [real, complex] = [new RFFT(size, size), new FFT(size, size)];
  real.forward(signal);
  complex.forward(signal);
  const repaired = [0, 1, 2, 3, 4].map((k) => Math.hypot(real.trans[k], k && real.trans[size - k]) * (2 / size));
  const [found, right] = [real, complex].map((transform) => text(Array.from(transform.spectrum)));
  const peaks = [real, complex].map((transform) => `peak in band ${transform.peakBand}`);
  const results = `RFFT ${found}, ${peaks[0]}; FFT ${right}, ${peaks[1]}; from trans ${text(repaired)}`;
  console.log(`${(name + ":").padEnd(20)} ${results}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.deepEqual([right, text(repaired)], [expected, expected]);
  assert.equal(complex.peakBand, 3);
}
JAVASCRIPT
node spectrum.cjs
