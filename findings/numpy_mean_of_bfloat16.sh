#!/usr/bin/env bash
# numpy 2.4.6 with ml_dtypes 0.6.0: the mean of 4,096 ones of bfloat16 is 0.0625.
#
# numpy sums float16 in float32 for means, and in pairs of blocks elsewhere, and a product of bfloat16 matrices adds up in
# float32. So one would expect means and sums of bfloat16 that are right to a few bits. But numpy adds the elements of types
# that it does not know one after the other in the type itself. In bfloat16, 256 + 1 is 256: from 256 ones on the sum stays
# there, and the mean shrinks with the length.
#
# Seen with numpy 2.4.6 and ml_dtypes 0.6.0, Python 3.11:
#   bfloat16: a @ a 4096.0, sum 256.0, mean 0.0625
#   float16:  a @ a 4096.0, sum 4096.0, mean 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy as np

found = {}
for dtype in (ml_dtypes.bfloat16, np.float16):
    ones = np.ones(4096, dtype)
    found[np.dtype(dtype).name] = float(ones @ ones), float(ones.sum()), float(ones.mean())
for name, (product, total, mean) in found.items():
    print(f"{name}: a @ a {product}, sum {total}, mean {mean}")
expected = {"bfloat16": (4096.0, 256.0, 0.0625), "float16": (4096.0, 4096.0, 1.0)}
assert found == expected, "the behaviour has changed"
PYTHON
