#!/usr/bin/env bash
# @thi.ng/matrices 3.0.26: normal44(out, m) returns the right matrix, and writes another one to out.
#
# The functions of the package take an array out for the result and return it. normal44 is documented to give the transposed inverse of a
# 4x4 matrix, by which the normals of a surface are transformed, and normal33 that of the upper 3x3 part. One would expect out to hold it
# afterwards, as out of invert44 and transpose44 holds the result. But only the inverse is written to out. The transpose is made in a new
# array, which is returned. So for a rotation, a program that reuses out transforms normals by the opposite rotation. For a scale along the
# axes both matrices are the same, and it is not seen. Nothing warns of it. The returned array is right.
#
# A way around it: take the returned array, or transpose44(out, invert44(out, m)).
#
# Seen with @thi.ng/matrices 3.0.26 on node 20.20, by columns, for the 3x3 part [2,0,0,1,4,0,0,0,1] of m:
#   normal33: returned [0.5,-0.125,0,0,0.25,0,0,0,1], out [0.5,0,0,-0.125,0.25,0,0,0,1]
#   normal44: returned [0.5,-0.125,0,0,0,0.25,0,0,0,0,1,0,0,0,0,1], out [0.5,0,0,0,-0.125,0.25,0,0,0,0,1,0,0,0,0,1]
#   invert44: returned out itself
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @thi.ng/matrices@3.0.26
cat > normals.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { invert44, normal33, normal44, transpose44 } from "@thi.ng/matrices";

const m = [2, 0, 0, 0, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
const transpose = (a, n) => a.map((_, k) => a[(k % n) * n + Math.floor(k / n)]);
const product = (a, b, n) =>
  a.map((_, k) => Array.from({ length: n }, (_, i) => a[i * n + (k % n)] * b[Math.floor(k / n) * n + i]).reduce((s, x) => s + x));
const part = (a, n) => a.filter((_, k) => k % 4 < n && k < 4 * n);
const identity = (n) => Array.from({ length: n * n }, (_, k) => Number(k % (n + 1) === 0));

for (const [name, normal, n] of [["normal33", normal33, 3], ["normal44", normal44, 4]]) {
  const out = [];
  const returned = normal(out, m);
  console.log(`${name}: returned ${JSON.stringify(returned)}, out ${JSON.stringify(out)}`);
  assert.deepEqual(product(part(m, n), transpose(returned, n), n), identity(n));
  assert.deepEqual(product(part(m, n), out, n), identity(n), "the behaviour has changed");
  assert.notDeepEqual(out, returned, "the behaviour has changed");
}
const out = [];
assert.equal(invert44(out, m), out);
console.log("invert44: returned out itself");
assert.deepEqual(transpose44(out, invert44(out, m)), normal44([], m));
JAVASCRIPT
node normals.mjs
