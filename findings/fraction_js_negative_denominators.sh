#!/usr/bin/env bash
# fraction.js 5.3.4: the logarithm of 1/8 to the base 4 is 3/-2, and counts as a positive number.
#
# new Fraction("1/8").log(4) is the exact logarithm, -3/2. fraction.js stores the sign of a number apart, and one would expect numerator and
# denominator to be positive. But of some negative logarithms, the sign is +1 and the denominator is -2. toFraction then gives "3/-2", and
# toString gives "-1.-5". The number is greater than 0, its absolute value is -1.5, and floor rounds it up. Nothing warns of it. It depends
# on the exponents of the prime factors: the logarithm of 1/4 to the base 8 is right. valueOf is right.
#
# A way around it: new Fraction(f) for such a result f.
#
# Seen with fraction.js 5.3.4 on node 20.20:
#   log of 8 to the base 4:   3/2, greater than 0: true, abs 3/2, floor 1; expected 3/2, true, 3/2, 1
#   log of 1/4 to the base 8: -2/3, greater than 0: false, abs 2/3, floor -1; expected -2/3, false, 2/3, -1
#   log of 1/8 to the base 4: 3/-2, greater than 0: true, abs 3/-2, floor -1; expected -3/2, false, 3/2, -2
#   log of 8 to the base 1/4: 3/-2, greater than 0: true, abs 3/-2, floor -1; expected -3/2, false, 3/2, -2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit fraction.js@5.3.4
cat > logarithms.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import Fraction from "fraction.js";

const describe = (f) => [f.toFraction(), f.gt(0), f.abs().toFraction(), f.floor().toFraction()];
const cases = [
  ["8", "4", 3, 2, ["3/2", true, "3/2", "1"]],
  ["1/4", "8", -2, 3, ["-2/3", false, "2/3", "-1"]],
  ["1/8", "4", -3, 2, ["3/-2", true, "3/-2", "-1"]],
  ["8", "1/4", -3, 2, ["3/-2", true, "3/-2", "-1"]],
];
for (const [value, base, n, d, seen] of cases) {
  // base ** (n / d) is the value.
  assert.ok(new Fraction(base).pow(n).equals(new Fraction(value).pow(d)));
  const logarithm = new Fraction(value).log(base);
  const found = describe(logarithm);
  const expected = [`${n}/${d}`, n > 0, `${Math.abs(n)}/${d}`, `${Math.floor(n / d)}`];
  const title = `log of ${value} to the base ${base}:`.padEnd(25);
  console.log(`${title} ${found[0]}, greater than 0: ${found[1]}, abs ${found[2]}, floor ${found[3]}; expected ${expected.join(", ")}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  assert.equal(found.join() === expected.join(), found[0] !== "3/-2");
  assert.deepEqual(describe(new Fraction(logarithm)), expected);
  assert.equal(logarithm.valueOf(), n / d);
}
JAVASCRIPT
node logarithms.mjs
