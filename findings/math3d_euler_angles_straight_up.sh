#!/usr/bin/env bash
# math3d 0.2.2: of a rotation made from the Euler angles 90, 40 and 0 degrees, the Euler angles are 90, 0 and 0.
#
# Quaternion.Euler(x, y, z) of the package is a rotation made from angles in degrees, and eulerAngles of a rotation are such angles. One
# would expect Quaternion.Euler to make the same rotation from them again. For most rotations it does. If x is 90 or -90, the angles y and
# z are not unique, as only their difference or sum matters, but one of them is still needed. eulerAngles gives 0 for both, so the rotation
# that is made from them is another one, here by 40 degrees. At an x of 89 or 89.999 degrees, the angles are right. Nothing warns of it.
#
# A way around it: keep the quaternion.
#
# Seen with math3d 0.2.2 on node 20.20, for the angle between the rotation and the one made from its Euler angles:
#   90, 40, 0:      90, 0, 0, apart by 40 degrees
#   90, 0, 30:      90, 0, 0, apart by 30 degrees
#   -90, 50, 20:    -90, 0, 0, apart by 70 degrees
#   89, 40, 10:     89, 40, 10, apart by 0 degrees
#   89.999, 40, 10: 89.999, 40, 10, apart by 0 degrees
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit math3d@0.2.2
cat > angles.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { Quaternion, Vector3 } = require("math3d");

const cases = [
  [[90, 40, 0], "90, 0, 0, apart by 40 degrees"],
  [[90, 0, 30], "90, 0, 0, apart by 30 degrees"],
  [[-90, 50, 20], "-90, 0, 0, apart by 70 degrees"],
  [[89, 40, 10], "89, 40, 10, apart by 0 degrees"],
  [[89.999, 40, 10], "89.999, 40, 10, apart by 0 degrees"],
];
const round = (x) => Math.round(x * 1e3) / 1e3;
for (const [angles, seen] of cases) {
  const rotation = Quaternion.Euler(...angles);
  const { x, y, z } = rotation.eulerAngles;
  const again = Quaternion.Euler(x, y, z);
  // The dot product is rounded, as angleTo is NaN for one that is just above 1.
  const apart = (2 * Math.acos(Math.min(1, round(Math.abs(rotation.dot(again)) * 1e6) / 1e6)) * 180) / Math.PI;
  const found = `${[x, y, z].map(round).join(", ")}, apart by ${Math.round(apart)} degrees`;
  console.log(`${(angles.join(", ") + ":").padEnd(15)} ${found}`);
  assert.equal(found, seen, "the behaviour has changed");
  const [p, q] = [rotation, again].map((r) => r.mulVector3(new Vector3(1, 2, 3)));
  assert.equal(p.sub(q).magnitude < 1e-6, Math.abs(angles[0]) !== 90);
}
JAVASCRIPT
node angles.cjs
