#!/usr/bin/env bash
# jsfive 0.4.2: elements of an HDF5 dataset that nobody has written are undefined instead of the fill value.
#
# HDF5 stores a dataset in chunks if asked to, and a chunk only takes room in the file once something has been written to it. All other
# elements have the dataset's fill value, which is 0 if none is given. One would expect this value from a reader, as from h5py. jsfive
# supports chunks, and its code can read the fill value, but its arrays have holes where a chunk is missing. In JavaScript, a hole is
# undefined, so that a sum of such elements is NaN. Nothing warns of it. Elements that nobody has written are right if they lie in a
# chunk that has been written to.
#
# A way around it: Array.from(dataset.value, (x) => x ?? 0), with the fill value in place of 0.
#
# Seen with jsfive 0.4.2 on node 20.20, for a file that h5py 3.16.0 with numpy 2.4.6 wrote, Python 3.11. The datasets have eight elements
# in chunks of two, and the elements 2 and 4 have been written:
#   fill value 0: h5py reads [0,0,5,0,6,0,0,0], jsfive [undefined,undefined,5,0,6,0,undefined,undefined], their sum is NaN
#   fill value 7: h5py reads [7,7,5,7,6,7,7,7], jsfive [undefined,undefined,5,7,6,7,undefined,undefined], their sum is NaN
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q h5py==3.16.0 numpy==2.4.6
cd "$folder"
npm install --silent --no-fund --no-audit jsfive@0.4.2
"$folder/venv/bin/python" - <<'PYTHON'
import json

import h5py

with h5py.File("file.h5", "w") as file:
    for fill in (0, 7):
        dataset = file.create_dataset(f"fill{fill}", (8,), "i4", chunks=(2,), fillvalue=fill)
        dataset[2], dataset[4] = 5, 6
with h5py.File("file.h5") as file, open("h5py.json", "w") as out:
    json.dump({name: dataset[:].tolist() for name, dataset in file.items()}, out)
PYTHON
cat > read.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { File } from "jsfive";

const bytes = readFileSync("file.h5");
const file = new File(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength), "file.h5");
const expected = JSON.parse(readFileSync("h5py.json"));
for (const fill of [0, 7]) {
  const found = Array.from(file.get(`fill${fill}`).value);
  const reference = expected[`fill${fill}`];
  const texts = [JSON.stringify(reference), `[${found.map(String)}]`];
  const sum = found.reduce((a, b) => a + b);
  console.log(`fill value ${fill}: h5py reads ${texts[0]}, jsfive ${texts[1]}, their sum is ${sum}`);
  assert.deepEqual(reference, [fill, fill, 5, fill, 6, fill, fill, fill]);
  const seen = [undefined, undefined, 5, fill, 6, fill, undefined, undefined];
  assert.deepEqual(found, seen, "the behaviour has changed");
}
JAVASCRIPT
node read.mjs
