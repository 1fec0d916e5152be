#!/usr/bin/env bash
# zarrita 0.7.5: elements that nobody has written, of an array with the fill value 18446744073709551615, are 0.
#
# A Zarr array has a fill value for the elements that nobody has written. zarrita returns 64-bit integers as BigInt, and one would expect
# the fill value to be as exact. But zarrita reads it from the JSON metadata as a double. Above 2^53 it is rounded, and if the result
# does not fit in 64 bits, it wraps around when it is put into the array. So the largest number of uint64, which often stands for missing
# data, becomes 0, as netCDF's default fill value for uint64 does. In a chunk that was written in part, the fill value is right, so that
# two elements that nobody has written differ. It is the same in both versions of the format. Nothing warns of it.
#
# A way around it: write every chunk, or choose a fill value below 2^53.
#
# Seen with zarrita 0.7.5 on node 20.20, for arrays of zarr 3.1.6 with numpy 2.4.6, Python 3.11. They have four elements in chunks of two,
# and only the first element was written:
#   uint64, 18446744073709551615: zarr 7,18446744073709551615,18446744073709551615, zarrita 7,18446744073709551615,0
#   uint64, 18446744073709551614: zarr 7,18446744073709551614,18446744073709551614, zarrita 7,18446744073709551614,0
#   int64, -9223372036854775806:  zarr 7,-9223372036854775806,-9223372036854775806, zarrita 7,-9223372036854775806,-9223372036854775808
#   int64, 9007199254740993:      zarr 7,9007199254740993,9007199254740993, zarrita 7,9007199254740993,9007199254740992
#   int64, 9007199254740991:      zarr 7,9007199254740991,9007199254740991, zarrita 7,9007199254740991,9007199254740991
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q zarr==3.1.6 numpy==2.4.6
cd "$folder"
npm install --silent --no-fund --no-audit zarrita@0.7.5
"$folder/venv/bin/python" - <<'PYTHON'
import json

import zarr

fill_values = (2**64 - 1, 2**64 - 2, -(2**63) + 2, 2**53 + 1, 2**53 - 1)
expected = []
for fill_value in fill_values:
    dtype = "uint64" if fill_value >= 2**63 else "int64"
    for version in (2, 3):
        settings = {"shape": (4,), "chunks": (2,), "dtype": dtype, "fill_value": fill_value, "zarr_format": version}
        array = zarr.create_array(store=f"version{version}_{fill_value}", **settings)
        array[0] = 7
    expected.append([dtype, str(fill_value), ",".join(map(str, array[:3].tolist()))])
with open("zarr.json", "w") as out:
    json.dump(expected, out)
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { get, open } from "zarrita";

const load = (folder) => {
  const files = readdirSync(folder, { recursive: true }).filter((name) => statSync(`${folder}/${name}`).isFile());
  return new Map(files.map((name) => [`/${name}`, new Uint8Array(readFileSync(`${folder}/${name}`))]));
};
const seen = ["0", "0", "-9223372036854775808", "9007199254740992", "9007199254740991"];
for (const [i, [type, fillValue, expected]] of JSON.parse(readFileSync("zarr.json")).entries()) {
  for (const version of [2, 3]) {
    const array = await open(load(`version${version}_${fillValue}`), { kind: "array" });
    const found = Array.from((await get(array)).data, String);
    const title = `${type}, ${fillValue}:`.padEnd(29);
    if (version === 2) console.log(`${title} zarr ${expected}, zarrita ${found.slice(0, 3)}`);
    assert.equal(expected, ["7", fillValue, fillValue].join(","));
    assert.deepEqual(found, ["7", fillValue, seen[i], seen[i]], "the behaviour has changed");
  }
}
JAVASCRIPT
node read.mjs
