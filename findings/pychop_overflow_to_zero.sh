#!/usr/bin/env bash
# pychop 0.6.2: numbers that are too large for the emulated format become zeros.
#
# Chop(exp_bits=5, sig_bits=10) rounds to IEEE half precision, whose largest number is 65,504. One would expect that larger
# numbers become infinity, or the largest number if one rounds toward zero. From 131,072 on they do become infinity. But numbers
# from 65,536 up to there become 0: their exponent, one above the largest, is the one that encodes infinity, and pychop takes
# it neither for that of a number nor for an overflow. So 300 * 300 is 0 in emulated half precision. Other formats have such a
# range as well: it goes from 256 to 512 in Chop(4, 3), and from 2^128 to 2^129 in Chop(8, 7), which is bfloat16.
#
# Seen with pychop 0.6.2 and numpy 2.4.6, Python 3.11:
#   numpy, float16:         [65504.0, inf, inf, inf]    (of 65504, 65536, 90000 and 131072)
#   pychop, to nearest:     [65504.0, 0.0, 0.0, inf]
#   pychop, toward zero:    [65504.0, 0.0, 0.0, inf]
#   pychop, CPFloat:        300 * 300 = 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --no-deps pychop==0.6.2 numpy==2.4.6  # imports no other dependency here
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from pychop import Chop
from pychop.builtin import CPFloat

x = np.array([65504.0, 65536.0, 90000.0, 131072.0])
with np.errstate(over="ignore"):
    print("numpy, float16:", x.astype(np.float16).tolist())
found = [Chop(exp_bits=5, sig_bits=10, rmode=mode)(x).tolist() for mode in (1, 4)]
for what, result in zip(("to nearest", "toward zero"), found):
    print(f"pychop, {what}: {result}")
value = CPFloat(300.0, Chop(exp_bits=5, sig_bits=10))
product = float(value * value)
print("pychop, CPFloat: 300 * 300 =", product)
assert found == [[65504.0, 0.0, 0.0, float("inf")]] * 2 and product == 0, "the behaviour has changed"
PYTHON
