#!/usr/bin/env bash
# @sgratzl/science 2.0.0: the solutions of x**2 - 3 x + 2 = 0 are given as 2.5 and 3.5, instead of 1 and 2.
#
# quadratic()(a, b, c) gives the real solutions of a x**2 + b x + c = 0, and quadratic().complex(true) the complex ones.
# They are (-b + sqrt(d)) / (2 a) and (-b - sqrt(d)) / (2 a) for d = b**2 - 4 a c. Only the square root is divided by
# 2 a, and -b is not. So both solutions are wrong by the same number unless b is 0 or 2 a is 1, and complex solutions
# have wrong real parts. If d is 0, the one solution is computed separately, and is right. Nothing warns of it.
#
# A way around it: divide the mean of the two results by 2 a, and keep their difference.
#
# Seen with @sgratzl/science 2.0.0 on node 20.20:
#   x**2 - 3 x + 2:   2.5, 3.5, expected 1, 2
#   2 x**2 - 8 x + 6: 7, 9, expected 1, 3
#   x**2 + 2 x + 5:   -2 - 2i, -2 + 2i, expected -1 - 2i, -1 + 2i
#   x**2 - 4:         -2, 2, expected -2, 2
#   x**2 - 2 x + 1:   1, expected 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @sgratzl/science@2.0.0
cat > roots.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { quadratic } = require("@sgratzl/science");

const cases = [
  ["x**2 - 3 x + 2", [1, -3, 2], "2.5, 3.5", "1, 2"],
  ["2 x**2 - 8 x + 6", [2, -8, 6], "7, 9", "1, 3"],
  ["x**2 + 2 x + 5", [1, 2, 5], "-2 - 2i, -2 + 2i", "-1 - 2i, -1 + 2i"],
  ["x**2 - 4", [1, 0, -4], "-2, 2", "-2, 2"],
  ["x**2 - 2 x + 1", [1, -2, 1], "1", "1"],
];
const text = ({ r, i }) => (i === 0 ? `${r}` : `${r} ${i < 0 ? "-" : "+"} ${Math.abs(i)}i`);
for (const [name, [a, b, c], seen, expected] of cases) {
  const roots = quadratic().complex(true)(a, b, c);
  const found = roots.map(text).join(", ");
  console.log(`${(name + ":").padEnd(17)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(found === expected, b === 0 || roots.length === 1);
  if (roots.every(({ i }) => i === 0)) {
    assert.deepEqual(quadratic()(a, b, c), roots.map(({ r }) => r));
  }
  if (roots.length === 2) {
    const middle = (roots[0].r + roots[1].r) / 2;
    const moved = roots.map(({ r, i }) => text({ r: r - middle + middle / (2 * a), i }));
    assert.equal(moved.join(", "), expected);
  }
}
JAVASCRIPT
node roots.cjs
