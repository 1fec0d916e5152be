#!/usr/bin/env bash
# @mathigon/fermat 1.1.24: 6 divided by 2 is NaN, 3 divided by 1/2 is 3, and 4 + 2i divided by 2 is infinite.
#
# XNumber is a class of integers, decimals and fractions, and Complex one of complex numbers. Both have add, subtract, multiply and divide,
# which also take plain numbers. One would expect divide to undo multiply. XNumber divides by multiplying with the inverse. The inverse
# tests whether there is a denominator, and does in each case what belongs to the other: for an integer it swaps the numerator and a
# denominator that does not exist, and for a fraction it ignores the denominator. Complex is to give infinity for a division by zero, but
# takes a divisor for zero if its real or its imaginary part is zero. Nothing warns of it. Divisors with two parts are right.
#
# A way around it: multiply by new XNumber(1, 2), or by new Complex(0.5, 0), instead of dividing by 2.
#
# Seen with @mathigon/fermat 1.1.24 on node 20.20:
#   6 / 2:                 NaN, expected 3
#   1/2 / 3:               NaN, expected 1/6
#   3 / (1/2):             3, expected 6
#   1/2 / (1/2):           1/2, expected 1
#   6 * (1/2):             3, expected 3
#   (4 + 2i) / 2:          Infinity + Infinityi, expected 2 + 1i
#   (4 + 2i) / 2i:         Infinity + Infinityi, expected 1 + -2i
#   (4 + 2i) / (1 + 1i):   3 + -1i, expected 3 + -1i
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @mathigon/fermat@1.1.24
cat > divide.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { Complex, XNumber } from "@mathigon/fermat";

const half = new XNumber(1, 2);
const z = new Complex(4, 2);
const text = (x) => {
  if (x instanceof Complex) return `${x.re} + ${x.im}i`;
  return Number.isNaN(x.num) ? "NaN" : `${x.num}${x.den ? `/${x.den}` : ""}`;
};
const cases = [
  ["6 / 2", new XNumber(6).divide(2), "NaN", "3"],
  ["1/2 / 3", half.divide(3), "NaN", "1/6"],
  ["3 / (1/2)", new XNumber(3).divide(half), "3", "6"],
  ["1/2 / (1/2)", half.divide(half), "1/2", "1"],
  ["6 * (1/2)", new XNumber(6).multiply(half).simplified, "3", "3"],
  ["(4 + 2i) / 2", z.divide(2), "Infinity + Infinityi", "2 + 1i"],
  ["(4 + 2i) / 2i", z.divide(new Complex(0, 2)), "Infinity + Infinityi", "1 + -2i"],
  ["(4 + 2i) / (1 + 1i)", z.divide(new Complex(1, 1)), "3 + -1i", "3 + -1i"],
];
for (const [formula, result, seen, expected] of cases) {
  console.log(`${(formula + ":").padEnd(22)} ${text(result)}, expected ${expected}`);
  assert.equal(text(result), seen, "the behaviour has changed");
}
const back = (quotient, divisor) => text(Complex.product(quotient, divisor));
assert.equal(back(new Complex(2, 1), 2), text(z));
assert.equal(back(new Complex(1, -2), new Complex(0, 2)), text(z));
assert.equal(back(new Complex(3, -1), new Complex(1, 1)), text(z));
JAVASCRIPT
node divide.mjs
