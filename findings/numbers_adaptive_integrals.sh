#!/usr/bin/env bash
# numbers 0.7.0: with an error bound of 1e-6, the integral of x**4 from 0 to 1 is 0.2083, and from -1 to 2 it is 97.4 instead of 6.6.
#
# numbers.calculus.adaptiveSimpson is documented to evaluate the area under a curve up to an error bound, by halving intervals until the
# error is small. One would expect 0.2 for x**4 from 0 to 1. But the interval from a to b is divided at a + b instead of (a + b) / 2. If a
# is 0, this is b, so one part is empty and the other one is the whole: the error is estimated as 0, and the result is that of a single
# step, whatever the bound is. In other cases the two parts are not the interval. From 1 to 2, they are those from 1 to 3 and from 3 to 2,
# and so on, and the result is infinite. Nothing warns of it.
#
# A way around it: Riemann(f, a, b, n, (x, y) => (x + y) / 2) with many steps.
#
# Seen with numbers 0.7.0 on node 20.20, for an error bound of 1e-6:
#   x**4 from 0 to 1:    0.2083, expected 0.2, with Riemann 0.2
#   x**4 from -1 to 1:   0.4444, expected 0.4, with Riemann 0.4
#   x**4 from -1 to 2:   97.3778, expected 6.6, with Riemann 6.6
#   x**4 from 1 to 2:    Infinity, expected 6.2, with Riemann 6.2
#   sin(x) from 0 to pi: 2.0944, expected 2, with Riemann 2
#   x**2 from 0 to 1:    0.3333, expected 0.3333, with Riemann 0.3333
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numbers@0.7.0
cat > integrals.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { calculus } = require("numbers");

const fourth = (x) => x ** 4;
const cases = [
  ["x**4 from 0 to 1", fourth, 0, 1, 0.2, 0.2083],
  ["x**4 from -1 to 1", fourth, -1, 1, 0.4, 0.4444],
  ["x**4 from -1 to 2", fourth, -1, 2, 6.6, 97.3778],
  ["x**4 from 1 to 2", fourth, 1, 2, 6.2, Infinity],
  ["sin(x) from 0 to pi", Math.sin, 0, Math.PI, 2, 2.0944],
  ["x**2 from 0 to 1", (x) => x ** 2, 0, 1, 0.3333, 0.3333],
];
const round = (x) => Math.round(x * 1e4) / 1e4;
for (const [name, f, a, b, expected, seen] of cases) {
  const found = round(calculus.adaptiveSimpson(f, a, b, 1e-6));
  const riemann = round(calculus.Riemann(f, a, b, 4096, (x, y) => (x + y) / 2));
  console.log(`${(name + ":").padEnd(20)} ${found}, expected ${expected}, with Riemann ${riemann}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(riemann, expected);
  assert.equal(found === expected, name.startsWith("x**2"));
}
JAVASCRIPT
node integrals.cjs
