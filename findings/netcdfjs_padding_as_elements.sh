#!/usr/bin/env bash
# netcdfjs 4.0.0: a variable of three 16-bit integers has four elements.
#
# The classic NetCDF format pads each variable to a multiple of four bytes, since its header can only point to such places. The padding
# is not part of the data: the dimensions say how many elements there are. One would expect as many elements from a reader. netcdfjs
# divides the padded size by the size of an element, so that the padding comes back as elements, with the value that stands for
# missing data. If a file has several variables that grow, every record of theirs is padded, and then each 16-bit number comes back
# as an array of two. 32-bit and 64-bit numbers need no padding, and are right.
#
# A way around it: cut every variable, or each of its records, to the product of its dimensions.
#
# Seen with netcdfjs 4.0.0 on node 20.20, for a file that scipy 1.17.1 with numpy 2.4.6 wrote, Python 3.11:
#   fixed of 3 int16: scipy reads [1,2,3], netcdfjs [1,2,3,-32767]
#   fixed of 3 int32: scipy reads [1,2,3], netcdfjs [1,2,3]
#   growing of int16: scipy reads [1,2,3], netcdfjs [[1,-32767],[2,-32767],[3,-32767]]
#   growing of int32: scipy reads [1,2,3], netcdfjs [1,2,3]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q scipy==1.17.1 numpy==2.4.6
cd "$folder"
npm install --silent --no-fund --no-audit netcdfjs@4.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import json

from scipy.io import netcdf_file

dimensions = {"growing": None, "fixed": 3}
with netcdf_file("file.nc", "w") as file:
    for dimension, length in dimensions.items():
        file.createDimension(dimension, length)
        for kind in ("int16", "int32"):
            file.createVariable(f"{dimension}_{kind}", kind, (dimension,))[:3] = [1, 2, 3]
with netcdf_file("file.nc", mmap=False) as file, open("scipy.json", "w") as out:
    json.dump({name: variable[:].tolist() for name, variable in file.variables.items()}, out)
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { NetCDFReader } from "netcdfjs";

const reader = new NetCDFReader(readFileSync("file.nc"));
const expected = JSON.parse(readFileSync("scipy.json"));
const missing = -32767;
const seen = {
  fixed_int16: [1, 2, 3, missing],
  fixed_int32: [1, 2, 3],
  growing_int16: [[1, missing], [2, missing], [3, missing]],
  growing_int32: [1, 2, 3],
};
for (const [name, values] of Object.entries(seen)) {
  const found = reader.getDataVariable(name);
  const [dimension, kind] = name.split("_");
  const title = dimension === "fixed" ? `fixed of 3 ${kind}` : `growing of ${kind}`;
  console.log(`${title}: scipy reads ${JSON.stringify(expected[name])}, netcdfjs ${JSON.stringify(found)}`);
  assert.deepEqual(expected[name], [1, 2, 3]);
  assert.deepEqual(found, values, "the behaviour has changed");
}
JAVASCRIPT
node read.mjs
