#!/usr/bin/env bash
# @rayyamhk/complex 1.0.12: the inverse tangent of 1 is -3/4 pi, and the inverse cosine of -1 is -pi.
#
# Complex.atan, Complex.acos and so on are documented to calculate the inverse functions. One would expect the principal
# values, such as pi/4 for the inverse tangent of 1, as in Math.atan. These functions are made of logarithms, whose
# imaginary parts are from 0 to 2 pi here, and the formulas need those from -pi to pi. In atan, the difference of two
# logarithms is off by 2 pi, and half of it by pi. So the result is too small by pi for all positive numbers, and too
# large by pi for all negative ones. Nothing warns of it. The tangent of such a result is right. The documentation of
# getArgument gives the range from 0 to 2 pi, and that of the inverse functions gives none. asin is right for numbers
# from 0 to 1.
#
# A way around it: for real numbers, the functions of Math.
#
# Seen with @rayyamhk/complex 1.0.12 on node 20.20:
#   atan(1):    -2.3562, expected 0.7854
#   atan(-1):   2.3562, expected -0.7854
#   atan(1000): -1.5718, expected 1.5698
#   atan(0.01): -3.1316, expected 0.01
#   acos(-1):   -3.1416, expected 3.1416
#   asin(-1):   4.7124, expected -1.5708
#   asin(0.5):  0.5236, expected 0.5236
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @rayyamhk/complex@1.0.12
cat > inverses.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const Complex = require("@rayyamhk/complex");

const round = (x) => Math.round(x * 1e4) / 1e4;
const cases = [
  ["atan", 1, -2.3562],
  ["atan", -1, 2.3562],
  ["atan", 1000, -1.5718],
  ["atan", 0.01, -3.1316],
  ["acos", -1, -3.1416],
  ["asin", -1, 4.7124],
  ["asin", 0.5, 0.5236],
];
for (const [name, x, seen] of cases) {
  const result = Complex[name](new Complex(x, 0));
  const [found, expected] = [round(result.getReal()), round(Math[name](x))];
  console.log(`${`${name}(${x}):`.padEnd(11)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(found === expected, x === 0.5);
  assert.ok(Math.abs(Complex[name.slice(1)](result).getReal() - x) < 1e-6);
}
JAVASCRIPT
node inverses.cjs
