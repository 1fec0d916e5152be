#!/usr/bin/env bash
# ts-matrix 1.5.0: halfway from a turn by 20 degrees to one by 60 degrees, Quat.shortMix turns by 160 degrees.
#
# A quaternion and its negative are the same rotation. Quat.shortMix(q1, q2, t) is documented as spherical linear interpolation with a short
# path: if the angle between the two quaternions is obtuse, it is to take the negative of q2 first. One would expect the same rotation for
# q2 and for -q2. But the code calls inverse(), which turns the axis around and gives another rotation, and goes on with the angle between
# q1 and -q2. So the result points elsewhere and is not of unit length. Nothing warns of it. If the angle is acute, the result is right.
#
# A way around it: if Quat.dot(q1, q2) is negative, negate the four elements of q2 before the call.
#
# Seen with ts-matrix 1.5.0 on node 20.20, for turns about z and t = 0.5:
#   20 to 60 degrees:          shortMix turns by 40 degrees, length 1; expected 40
#   20 to 60 degrees, as -q2:  shortMix turns by 160 degrees, length 0.347; expected 40
#   20 to 300 degrees:         shortMix turns by 220 degrees, length 0.185; expected 340
#   20 to 300 degrees, as -q2: shortMix turns by 340 degrees, length 1; expected 340
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ts-matrix@1.5.0
cat > interpolate.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { Quat, Vector } from "ts-matrix";

const degree = Math.PI / 180;
const turn = (angle) => Quat.fromAxisAngle(new Vector([0, 0, 1]), angle * degree);
const negative = (q) => new Quat(q.values.map((x) => -x));
const angleOf = (q) => Math.round(((2 * Math.atan2(q.z, q.w)) / degree + 360) % 360);

const start = turn(20);
const cases = [
  ["20 to 60 degrees", turn(60), 40, 40],
  ["20 to 60 degrees, as -q2", negative(turn(60)), 160, 40],
  ["20 to 300 degrees", turn(300), 220, 340],
  ["20 to 300 degrees, as -q2", negative(turn(300)), 340, 340],
];
for (const [name, end, seen, expected] of cases) {
  const found = Quat.shortMix(start, end, 0.5);
  const length = Math.round(found.length() * 1000) / 1000;
  console.log(`${(name + ":").padEnd(26)} shortMix turns by ${angleOf(found)} degrees, length ${length}; expected ${expected}`);
  assert.equal(angleOf(found), seen, "the behaviour has changed");
  assert.equal(length === 1, seen === expected, "the behaviour has changed");
  assert.equal(Quat.dot(start, end) > 0, seen === expected);
  const direct = Quat.dot(start, end) < 0 ? negative(end) : end;
  assert.equal(angleOf(Quat.shortMix(start, direct, 0.5)), expected);
}
JAVASCRIPT
node interpolate.mjs
