#!/usr/bin/env bash
# nlptoolkit-math 1.0.7: the hyperbolic tangent of a vector is 1 for an element that is 0, and 4.19 for -1.
#
# Vector.tanh is documented to replace each element by its hyperbolic tangent, which is between -1 and 1, and 0 at 0. It
# computes 1 / (1 + tanh(x)) instead, after the pattern of sigmoid, 1 / (1 + exp(-x)). The result falls where tanh
# rises, and grows without bound for negative elements. Nothing warns of it. Vector.sigmoid is right.
#
# A way around it: the sigmoid of 2 x, which is (1 + tanh(x)) / 2, or Math.tanh for each element.
#
# Seen with nlptoolkit-math 1.0.7 on node 20.20:
#   tanh(-3): 202.2144, expected -0.9951
#   tanh(-1): 4.1945, expected -0.7616
#   tanh(0):  1, expected 0
#   tanh(1):  0.5677, expected 0.7616
#   tanh(20): 0.5, expected 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit nlptoolkit-math@1.0.7
cat > tanh.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { Vector } = require("nlptoolkit-math");

const round = (x) => Math.round(x * 1e4) / 1e4;
const cases = [[-3, 202.2144], [-1, 4.1945], [0, 1], [1, 0.5677], [20, 0.5]];
const vector = new Vector(cases.map(([x]) => x));
const doubled = new Vector(cases.map(([x]) => 2 * x));
vector.tanh();
doubled.sigmoid();
for (const [k, [x, seen]] of cases.entries()) {
  const [found, expected] = [round(vector.getValue(k)), round(Math.tanh(x))];
  console.log(`${`tanh(${x}):`.padEnd(9)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.notEqual(found, expected);
  assert.equal(round(2 * doubled.getValue(k) - 1), expected);
}
JAVASCRIPT
node tanh.cjs
