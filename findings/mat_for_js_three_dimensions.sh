#!/usr/bin/env bash
# mat-for-js 1.1.0: in an array of three dimensions, some elements come twice and others are missing.
#
# mat-for-js reads MAT files of MATLAB into nested JavaScript arrays. MATLAB stores the first dimension as the fastest one, and the package
# turns matrices into arrays of rows. One would expect the same of arrays of three dimensions, and they come back with the right shape.
# But of the numbers 0 to 7 in a 2x2x2 array, 2 and 6 come twice, and 3 and 7 are missing. In a 2x3x4 array of 24 different numbers, only
# 15 of them are left. It is the same for compressed files. Nothing warns of it.
#
# A way around it: save the matrices x(:, :, k) one by one.
#
# Seen with mat-for-js 1.1.0 on node 20.20, for files that scipy 1.17.1 with numpy 2.4.6 wrote, Python 3.11:
#   2x3:   scipy [[0,1,2],[3,4,5]], mat-for-js [[0,1,2],[3,4,5]]
#   2x2x2: scipy [[[0,1],[2,3]],[[4,5],[6,7]]], mat-for-js [[[0,2],[2,1]],[[4,6],[6,5]]]
#   2x3x4: scipy 24 different numbers, mat-for-js 15 different numbers
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q scipy==1.17.1 numpy==2.4.6
cd "$folder"
npm install --silent --no-fund --no-audit mat-for-js@1.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

import numpy as np
import scipy.io

expected = {}
for shape in ((2, 3), (2, 2, 2), (2, 3, 4)):
    name = "x".join(map(str, shape))
    x = np.arange(float(np.prod(shape))).reshape(shape)
    scipy.io.savemat(f"{name}.mat", {"x": x})
    scipy.io.savemat(f"{name}_compressed.mat", {"x": x}, do_compression=True)
    expected[name] = scipy.io.loadmat(f"{name}.mat")["x"].tolist()
with open("scipy.json", "w") as out:
    json.dump(expected, out)
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { read } from "mat-for-js";

const expected = JSON.parse(readFileSync("scipy.json"));
const count = (array) => `${new Set(array.flat(2)).size} different numbers`;
const cases = [
  ["2x3", JSON.stringify, "[[0,1,2],[3,4,5]]"],
  ["2x2x2", JSON.stringify, "[[[0,2],[2,1]],[[4,6],[6,5]]]"],
  ["2x3x4", count, "15 different numbers"],
];
for (const [shape, text, seen] of cases) {
  for (const compression of ["", "_compressed"]) {
    const found = read(new Uint8Array(readFileSync(`${shape}${compression}.mat`)).buffer).data.x;
    if (!compression) console.log(`${(shape + ":").padEnd(6)} scipy ${text(expected[shape])}, mat-for-js ${text(found)}`);
    assert.equal(text(found), seen, "the behaviour has changed");
    assert.equal(found.flat(2).length, expected[shape].flat(2).length);
  }
}
JAVASCRIPT
node read.mjs
