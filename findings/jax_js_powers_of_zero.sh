#!/usr/bin/env bash
# @jax-js/jax 0.1.25: the derivative of x**2 at 0 is NaN, and so is 0 to the power of 0.
#
# jax-js is jax for JavaScript, with arrays like numpy's and derivatives of functions. One would expect that power(x, 2) has the derivative
# 2 x, as square(x) and x times x have it, and that power(0, 0) is 1, as in numpy and in JavaScript. But power(x, y) is computed as the
# exponential of y times the logarithm of the absolute value of x. At 0 the logarithm is minus infinity, its product with 0 is NaN, and the
# chain rule multiplies 0 by infinity. So a loss with power(x, 2) has no gradient as soon as one x is 0. The derivative of prod at a single
# zero, which is the product of the other elements, is NaN, too. Nothing warns of it. Other values of power are right.
#
# A way around it: square(x), or a product of factors.
#
# Seen with @jax-js/jax 0.1.25 on node 20.20, on the CPU:
#   power(x, 2) at 0, -2, 3:                  derivatives NaN, -4, 6, expected 0, -4, 6
#   power(x, 1) at 0, -2, 3:                  derivatives NaN, 1, 1, expected 1, 1, 1
#   square(x) at 0, -2, 3:                    derivatives 0, -4, 6, expected 0, -4, 6
#   prod at (2, 0, 3):                        derivatives 0, NaN, 0, expected 0, 6, 0
#   power of (0, 0, 2, -2) and (0, 2, 3, 3): NaN, 0, 8, -8, expected 1, 0, 8, -8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @jax-js/jax@0.1.25
cat > powers.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { defaultDevice, grad, init, numpy as np } from "@jax-js/jax";

await init("cpu");
defaultDevice("cpu");
const round = (values) => Array.from(values, (x) => Math.round(x * 1e4) / 1e4 + 0);
const cases = [
  ["power(x, 2) at 0, -2, 3", (x) => np.power(x, 2).sum(), [0, -2, 3], [NaN, -4, 6], [0, -4, 6]],
  ["power(x, 1) at 0, -2, 3", (x) => np.power(x, 1).sum(), [0, -2, 3], [NaN, 1, 1], [1, 1, 1]],
  ["square(x) at 0, -2, 3", (x) => np.square(x).sum(), [0, -2, 3], [0, -4, 6], [0, -4, 6]],
  ["prod at (2, 0, 3)", (x) => np.prod(x), [2, 0, 3], [0, NaN, 0], [0, 6, 0]],
];
for (const [name, f, at, seen, expected] of cases) {
  const found = round(await grad(f)(np.array(at)).js());
  console.log(`${(name + ":").padEnd(41)} derivatives ${found.join(", ")}, expected ${expected.join(", ")}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
}
const [bases, exponents] = [[0, 0, 2, -2], [0, 2, 3, 3]];
const found = round(await np.power(np.array(bases), np.array(exponents)).js());
const expected = bases.map((x, i) => x ** exponents[i]);
console.log(`power of (${bases.join(", ")}) and (${exponents.join(", ")}): ${found.join(", ")}, expected ${expected.join(", ")}`);
assert.deepEqual(found, [NaN, ...expected.slice(1)], "the behaviour has changed");
JAVASCRIPT
node powers.mjs
