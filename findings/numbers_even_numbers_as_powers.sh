#!/usr/bin/env bash
# numbers 0.7.0: 6 is given as 2 to the power of 2, and 100 as 2 to the power of 6.
#
# numbers.prime.getPrimePower(n) is documented to determine if n is a power of a prime number, and to return the prime and the exponent, and
# getPerfectPower does the same for exponents above 1. Both return false otherwise. One would expect false for 6 and for 100 = 2**2 * 5**2.
# For each even number, the answer is 2 and the length of the binary number minus 1, without looking at the other digits: 6 is 110. So all
# even numbers count as powers of 2. Odd numbers are right. factorization is right too. Nothing warns of it.
#
# A way around it: see if all elements of factorization(n) are the same.
#
# Seen with numbers 0.7.0 on node 20.20:
#   6:   getPrimePower [2,2], factorization [2,3]
#   8:   getPrimePower [2,3], factorization [2,2,2]
#   9:   getPrimePower [3,2], factorization [3,3]
#   15:  getPrimePower false, factorization [3,5]
#   100: getPrimePower [2,6], factorization [2,2,5,5]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numbers@0.7.0
cat > powers.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { prime } = require("numbers");

const cases = [
  [6, "[2,2]"],
  [8, "[2,3]"],
  [9, "[3,2]"],
  [15, "false"],
  [100, "[2,6]"],
];
for (const [n, seen] of cases) {
  const found = prime.getPrimePower(n);
  const factors = prime.factorization(n);
  const texts = [found, factors].map((value) => JSON.stringify(value));
  console.log(`${(n + ":").padEnd(4)} getPrimePower ${texts[0]}, factorization ${texts[1]}`);
  assert.equal(texts[0], seen, "the behaviour has changed");
  assert.deepEqual(prime.getPerfectPower(n), found);
  assert.equal(factors.reduce((product, factor) => product * factor), n);
  const expected = new Set(factors).size === 1 && [factors[0], factors.length];
  assert.equal(JSON.stringify(expected) === seen, n !== 6 && n !== 100);
}
JAVASCRIPT
node powers.cjs
