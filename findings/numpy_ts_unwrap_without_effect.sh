#!/usr/bin/env bash
# numpy-ts 1.4.0: unwrap returns phases as they are.
#
# numpy-ts is numpy for JavaScript. unwrap is documented as in numpy: jumps between neighbours that are larger than pi are changed by a
# multiple of 2 pi. One would expect a phase that grows by 1.5 a step, taken between -pi and pi, to grow by 1.5 a step afterwards. But the
# code first reduces a jump to the range from -pi to pi, and then asks whether the reduced jump is larger than pi, which it is not. Only a
# jump down by more than 3 pi is corrected, since % of a negative number is negative in JavaScript. Phases between -pi and pi have no such
# jumps, so unwrap has no effect on them. Nothing warns of it.
#
# A way around it: subtract 2 pi times the rounded quotient of a jump and 2 pi from each jump, and add up the jumps.
#
# Seen with numpy-ts 1.4.0 on node 20.20:
#   growing by 1.5:
#     wrapped  [0.00,1.50,3.00,-1.78,-0.28,1.22,2.72,-2.07]
#     unwrap   [0.00,1.50,3.00,-1.78,-0.28,1.22,2.72,-2.07]
#     expected [0.00,1.50,3.00,4.50,6.00,7.50,9.00,10.50]
#   falling by 2:
#     wrapped  [0.00,-2.00,2.28,0.28,-1.72,2.57,0.57,-1.43]
#     unwrap   [0.00,-2.00,2.28,0.28,-1.72,2.57,0.57,-1.43]
#     expected [0.00,-2.00,-4.00,-6.00,-8.00,-10.00,-12.00,-14.00]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit numpy-ts@1.4.0
cat > unwrap.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import * as np from "numpy-ts";

const turn = 2 * Math.PI;
const text = (values) => `[${values.map((x) => x.toFixed(2)).join(",")}]`;
const near = (left, right) => left.every((x, i) => Math.abs(x - right[i]) < 1e-9);
for (const [name, step] of [["growing by 1.5", 1.5], ["falling by 2", -2]]) {
  const phases = Array.from({ length: 8 }, (_, i) => i * step);
  const wrapped = phases.map((x) => x - turn * Math.round(x / turn));
  const found = np.unwrap(np.array(wrapped)).tolist();
  console.log(`${name}:\n  wrapped  ${text(wrapped)}\n  unwrap   ${text(found)}\n  expected ${text(phases)}`);
  assert.ok(near(found, wrapped), "the behaviour has changed");
  assert.ok(near(np.unwrap(np.array([wrapped])).tolist()[0], wrapped), "the behaviour has changed");

  const own = [wrapped[0]];
  for (let i = 1; i < wrapped.length; i++) {
    const jump = wrapped[i] - wrapped[i - 1];
    own.push(own[i - 1] + jump - turn * Math.round(jump / turn));
  }
  assert.ok(near(own, phases));
}
assert.ok(near(np.unwrap(np.array([0, -10])).tolist(), [0, -10 + turn]), "the behaviour has changed");
JAVASCRIPT
node unwrap.mjs
