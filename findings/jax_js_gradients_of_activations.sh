#!/usr/bin/env bash
# @jax-js/jax 0.1.25: the derivatives of elu and softplus at 100 are NaN instead of 1.
#
# jax-js is jax for JavaScript, with activation functions of neural networks and derivatives of functions. One would expect that elu(x),
# which is x for positive x, has the derivative 1 there. But elu computes exp(x) - 1 for all x before it chooses. In float32, exp(100) is
# infinite, and the chain rule multiplies it by the 0 of the branch that was not chosen. celu and selu do the same. softplus is computed as
# log(exp(x) + 1), so it is infinite at 100, and its derivative is infinity divided by infinity. The derivative of sigmoid at -100 has the
# same problem. Nothing warns of it. For small x, all of them are right.
#
# A way around it: np.where(np.less(x.ref, 0), nn.elu(np.minimum(x.ref, 0)), x) for elu, and np.logaddexp(x, 0) for softplus.
#
# Seen with @jax-js/jax 0.1.25 on node 20.20, on the CPU, for arrays of two elements:
#   elu at 1:               1, derivative 1, expected 1, derivative 1
#   elu at 100:             100, derivative NaN, expected 100, derivative 1
#   celu at 1:              1, derivative 1, expected 1, derivative 1
#   celu at 100:            100, derivative NaN, expected 100, derivative 1
#   selu at 1:              1.0507, derivative 1.0507, expected 1.0507, derivative 1.0507
#   selu at 100:            105.0701, derivative NaN, expected 105.0701, derivative 1.0507
#   softplus at 1:          1.3133, derivative 0.7311, expected 1.3133, derivative 0.7311
#   softplus at 100:        Infinity, derivative NaN, expected 100, derivative 1
#   sigmoid at -1:          0.2689, derivative 0.1966, expected 0.2689, derivative 0.1966
#   sigmoid at -100:        0, derivative NaN, expected 0, derivative 0
#   logaddexp(x, 0) at 1:   1.3133, derivative 0.7311, expected 1.3133, derivative 0.7311
#   logaddexp(x, 0) at 100: 100, derivative 1, expected 100, derivative 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @jax-js/jax@0.1.25
cat > activations.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { defaultDevice, grad, init, nn, numpy as np } from "@jax-js/jax";

await init("cpu");
defaultDevice("cpu");
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const round = (x) => Math.round(x * 1e4) / 1e4 + 0;
const wrapped = (x) => np.where(np.less(x.ref, 0), nn.elu(np.minimum(x.ref, 0)), x).sum();
assert.deepEqual(await grad(wrapped)(np.array([1, 100])).js(), [1, 1]);
const cases = [
  ["elu", nn.elu, (x) => x, () => 1, 100, [100, NaN]],
  ["celu", nn.celu, (x) => x, () => 1, 100, [100, NaN]],
  ["selu", nn.selu, (x) => 1.0507009873554805 * x, () => 1.0507009873554805, 100, [105.0701, NaN]],
  ["softplus", nn.softplus, (x) => x + Math.log1p(Math.exp(-x)), sigmoid, 100, [Infinity, NaN]],
  ["sigmoid", nn.sigmoid, sigmoid, (x) => sigmoid(x) * sigmoid(-x), -100, [0, NaN]],
  ["logaddexp(x, 0)", (x) => np.logaddexp(x, 0), (x) => x + Math.log1p(Math.exp(-x)), sigmoid, 100, [100, 1]],
];
for (const [name, f, value, derivative, far, seen] of cases) {
  const at = [Math.sign(far), far];
  const values = await f(np.array(at)).js();
  const derivatives = await grad((x) => f(x).sum())(np.array(at)).js();
  at.forEach((x, i) => {
    const found = [values[i], derivatives[i]].map(round);
    const expected = [value(x), derivative(x)].map(round);
    console.log(`${`${name} at ${x}:`.padEnd(23)} ${found.join(", derivative ")}, expected ${expected.join(", derivative ")}`);
    assert.deepEqual(found, x === far ? seen : expected, "the behaviour has changed");
  });
}
JAVASCRIPT
node activations.mjs
