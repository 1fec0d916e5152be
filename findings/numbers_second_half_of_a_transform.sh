#!/usr/bin/env bash
# numbers 0.7.0: the Fourier transform of 1, 2 is 3, 3, and its second half repeats the first for all lengths.
#
# numbers.dsp.fft is documented to give the frequency spectrum of an array of real numbers. One would expect element k to be the sum of
# x[j] exp(-2 pi i j k / n), so that 1, 2 gives 3, -1. In each step of the algorithm, the elements from n / 2 on are computed with a
# minus, and also with the factor exp(-2 pi i k / n), which has changed its sign there already. So both cancel out, and element k + n / 2 is
# element k. As the steps build on each other, the first half is wrong too from a length of 4 on. Nothing warns of it.
#
# A way around it: another package.
#
# Seen with numbers 0.7.0 on node 20.20:
#   1, 2:       3+0i, 3+0i, expected 3+0i, -1+0i
#   1, 2, 3, 4: 10+0i, 4-6i, 10+0i, 4-6i, expected 10+0i, -2+2i, -2+0i, -2-2i
#   0, 1, 0, 0: 1+0i, 0-1i, 1+0i, 0-1i, expected 1+0i, 0-1i, -1+0i, 0+1i
#   1, 0, 0, 0: 1+0i, 1+0i, 1+0i, 1+0i, expected 1+0i, 1+0i, 1+0i, 1+0i
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numbers@0.7.0
cat > transform.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const numbers = require("numbers");

const cases = [
  [[1, 2], "3+0i, 3+0i"],
  [[1, 2, 3, 4], "10+0i, 4-6i, 10+0i, 4-6i"],
  [[0, 1, 0, 0], "1+0i, 0-1i, 1+0i, 0-1i"],
  [[1, 0, 0, 0], "1+0i, 1+0i, 1+0i, 1+0i"],
];
const round = (x) => Math.round(x * 1e9) / 1e9 + 0;
const text = (values) => values.map(([x, y]) => `${round(x)}${round(y) < 0 ? "" : "+"}${round(y)}i`).join(", ");
for (const [x, seen] of cases) {
  const angle = (j, k) => (-2 * Math.PI * j * k) / x.length;
  const sum = (k, f) => x.reduce((total, value, j) => total + value * f(angle(j, k)), 0);
  const expected = text(x.map((_, k) => [sum(k, Math.cos), sum(k, Math.sin)]));
  const found = text(numbers.dsp.fft(x).map(({ re, im }) => [re, im]));
  console.log(`${(x.join(", ") + ":").padEnd(11)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(found === expected, x[0] === 1 && x[1] === 0);
}
JAVASCRIPT
node transform.cjs
