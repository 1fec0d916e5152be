#!/usr/bin/env bash
# big-rational 0.10.9: -1/3 rounded up is 1, and rounded down it is 0.
#
# floor and ceil of a rational number are documented to round down and up to the nearest integer. One would expect -1 and 0 for -1/3. For
# numbers between -1 and 0, floor gives 0 and ceil gives 1, as if they were positive: the sign is looked up in the whole part, which is 0.
# So ceil is off by more than 1, and floor is above the number. mod and round are computed from floor: the remainder of -1/3 and 1 is
# negative, although that of -4/3 and 1 is 2/3, and -4/3 is rounded to 0, although -1 is nearer. Nothing warns of it.
#
# A way around it: a.minus(1).floor().plus(1), and the same with ceil, for a negative number a.
#
# Seen with big-rational 0.10.9 and big-integer 1.6.52 on node 20.20:
#   -1/3: floor 0, ceil 1, round 0, modulo 1 -1/3
#   -2/3: floor 0, ceil 1, round 0, modulo 1 -2/3
#   -4/3: floor -2, ceil -1, round 0, modulo 1 2/3
#   1/3:  floor 0, ceil 1, round 0, modulo 1 1/3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit big-rational@0.10.9 big-integer@1.6.52
cat > round.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const bigRat = require("big-rational");

const cases = [
  [-1, 3, "floor 0, ceil 1, round 0, modulo 1 -1/3"],
  [-2, 3, "floor 0, ceil 1, round 0, modulo 1 -2/3"],
  [-4, 3, "floor -2, ceil -1, round 0, modulo 1 2/3"],
  [1, 3, "floor 0, ceil 1, round 0, modulo 1 1/3"],
];
for (const [numerator, denominator, seen] of cases) {
  const a = bigRat(numerator, denominator);
  const [floor, ceil, round] = [a.floor(), a.ceil(), a.round()].map((result) => result.toDecimal());
  const found = `floor ${floor}, ceil ${ceil}, round ${round}, modulo 1 ${a.mod(1).toString()}`;
  console.log(`${(a.toString() + ":").padEnd(5)} ${found}`);
  assert.equal(found, seen, "the behaviour has changed");
  const value = numerator / denominator;
  const right = Number(floor) === Math.floor(value) && Number(ceil) === Math.ceil(value) + 0;
  assert.equal(right, !(value > -1 && value < 0));
  assert.equal(Number(round) === Math.round(value) + 0, ![-4, -2].includes(numerator));
  if (value < 0) {
    const around = [a.minus(1).floor().plus(1), a.minus(1).ceil().plus(1)].map((result) => Number(result.toDecimal()));
    assert.deepEqual(around, [Math.floor(value), Math.ceil(value) + 0]);
  }
}
JAVASCRIPT
node round.cjs
