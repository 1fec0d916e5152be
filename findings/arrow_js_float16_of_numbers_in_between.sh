#!/usr/bin/env bash
# apache-arrow 21.2.0 for JavaScript: in a Float16 vector, 70,000 becomes 2.13, 1.9998 becomes 1, and 1e-8 becomes minus infinity.
#
# vectorFromArray of Arrow's JavaScript package takes ordinary numbers and a type. For Float16, one would expect the nearest half-precision
# number, and infinity from 65,520 on, as numpy and pyarrow give. Numbers that are half-precision numbers already are kept, and a comment
# in the source expects only these. But others are accepted, too, and most of them are rounded. From 65,536 on, a number becomes infinity
# if it has more than 21 significant bits, and otherwise a wrong one, as 70,000 does. A number that should be rounded up to a power of
# two, like 1.9998 or 127.98, can lose the carry and become half of it. Numbers below 2^-25 should be zero and become anything, also
# infinity or NaN. Builders have the same problem. Nothing warns of it.
#
# A way around it: round in JavaScript first (Math.f16round, or a package), so that the vector gets numbers that it can keep.
#
# Seen with apache-arrow 21.2.0 on node 20.20, and numpy 2.4.6 as the reference, Python 3.11:
#   0.1:    Arrow 0.0999755859375, numpy 0.0999755859375
#   65504:  Arrow 65504, numpy 65504
#   1.9998: Arrow 1, numpy 2
#   127.98: Arrow 64, numpy 128
#   65536:  Arrow 2, numpy Infinity
#   70000:  Arrow 2.134765625, numpy Infinity
#   1e-8:   Arrow -Infinity, numpy 0
#   1e-10:  Arrow 0.00005316734313964844, numpy 0
#   1e-40:  Arrow NaN, numpy 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numpy==2.4.6
cd "$folder"
npm install --silent --no-fund --no-audit apache-arrow@21.2.0
numbers="0.1 65504 1.9998 127.98 65536 70000 1e-8 1e-10 1e-40"
"$folder/venv/bin/python" -W ignore - $numbers > numpy.txt <<'PYTHON'
import sys

import numpy as np

print(*np.array(sys.argv[1:], dtype=np.float64).astype(np.float16).astype(np.float64).tolist())
PYTHON
cat > convert.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Float16, makeBuilder, vectorFromArray } from "apache-arrow";

const texts = process.argv.slice(2);
const numbers = texts.map(Number);
const reference = readFileSync("numpy.txt", "utf8").trim().split(" ");
const expected = reference.map((text) => (text === "inf" ? Infinity : Number(text)));
const found = Array.from(vectorFromArray(numbers, new Float16()));
texts.forEach((text, i) => console.log(`${(text + ":").padEnd(7)} Arrow ${found[i]}, numpy ${expected[i]}`));
const seen = [0.0999755859375, 65504, 1, 64, 2, 2.134765625, -Infinity, 0.00005316734313964844, NaN];
assert.deepEqual(expected, [0.0999755859375, 65504, 2, 128, Infinity, Infinity, 0, 0, 0]);
assert.deepEqual(found, seen, "the behaviour has changed");
const builder = makeBuilder({ type: new Float16() });
numbers.forEach((number) => builder.append(number));
assert.deepEqual(Array.from(builder.finish().toVector()), found);
const halves = expected.filter(Number.isFinite);
assert.deepEqual(Array.from(vectorFromArray(halves, new Float16())), halves);
JAVASCRIPT
node convert.mjs $numbers
