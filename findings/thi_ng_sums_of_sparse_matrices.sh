#!/usr/bin/env bash
# @thi.ng/sparse 0.3.120: the sum of two sparse matrices lacks the elements that only the first one has.
#
# CSR of the package is a sparse matrix in compressed rows, and a.add(b) and a.sub(b) are the sum and the difference. One would expect
# a + b to be b + a, and a - b to have the elements of a where b has none. The result starts empty, and only the elements of b are visited.
# So an element that a has and b lacks is missing in it, and a + b differs from b + a. a.sub(b) is empty if b is empty. Nothing warns of it.
# a.add(b) is right if b is empty or a itself, which are dealt with separately. SparseVec, the sparse vector, is right.
#
# A way around it: setAt for each of the nzEntries of b, on a copy of a.
#
# Seen with @thi.ng/sparse 0.3.120 on node 20.20, for a = [[1, 2], [0, 3]], b = [[0, 5], [0, 0]] and an empty matrix 0:
#   a + b: [0,7,0,0], expected [1,7,0,3]
#   b + a: [1,7,0,3], expected [1,7,0,3]
#   a - b: [0,-3,0,0], expected [1,-3,0,3]
#   b - a: [-1,3,0,-3], expected [-1,3,0,-3]
#   a + 0: [1,2,0,3], expected [1,2,0,3]
#   a - 0: [0,0,0,0], expected [1,2,0,3]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @thi.ng/sparse@0.3.120
cat > sums.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { CSR, SparseVec } from "@thi.ng/sparse";

const [x, y, zeros] = [[1, 2, 0, 3], [0, 5, 0, 0], [0, 0, 0, 0]];
const [a, b, zero] = [x, y, zeros].map((elements) => CSR.fromDense(2, 2, elements));
const combine = (left, right, sign) => left.map((value, k) => value + sign * right[k]);
const cases = [
  ["a + b", a.add(b), combine(x, y, 1), [0, 7, 0, 0]],
  ["b + a", b.add(a), combine(y, x, 1), [1, 7, 0, 3]],
  ["a - b", a.sub(b), combine(x, y, -1), [0, -3, 0, 0]],
  ["b - a", b.sub(a), combine(y, x, -1), [-1, 3, 0, -3]],
  ["a + 0", a.add(zero), x, [1, 2, 0, 3]],
  ["a - 0", a.sub(zero), x, [0, 0, 0, 0]],
];
for (const [name, result, expected, seen] of cases) {
  const found = result.toDense();
  console.log(`${name}: ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
  assert.deepEqual(found, seen, "the behaviour has changed");
  const wrong = ["a + b", "a - b", "a - 0"].includes(name);
  (wrong ? assert.notDeepEqual : assert.deepEqual)(found, expected);
}
assert.deepEqual(SparseVec.fromDense(x).add(SparseVec.fromDense(y)).toDense(), combine(x, y, 1));
JAVASCRIPT
node sums.mjs
