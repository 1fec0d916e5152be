#!/usr/bin/env bash
# dask 2026.8.0: the norm of the int8 numbers 100 and 100 is 5.66, and of 12 and 5 it is NaN.
#
# np.linalg.norm converts integers to floating-point numbers before it takes squares, and one would expect da.linalg.norm, whose
# documentation is numpy's, to give the same lengths. But dask takes the squares in the type of the array, where they overflow: of int8 if a
# number is larger than 11, of uint8 from 16 on, and of int32 from 46,341 on. For 12 and 5, the sum of the squares is negative, and numpy
# warns of an invalid value. For 100 and 100 nothing warns. With ord=1 or numpy.inf, norms are right.
#
# A way around it: x.astype(float).
#
# Seen with dask 2026.8.0 and numpy 2.4.6, Python 3.11:
#   int8 [3, 4]:          dask 5.0, numpy 5.0
#   int8 [100, 100]:      dask 5.66, numpy 141.42
#   int8 [12, 5]:         dask nan, numpy 13.0
#   uint8 [100, 100]:     dask 5.66, numpy 141.42
#   int16 [256, 256]:     dask 0.0, numpy 362.04
#   int32 [65536, 10000]: dask 10000.0, numpy 66294.55
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "dask[array]==2026.8.0" numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

import dask.array as da
import numpy as np

cases = (
    ("int8", [3, 4], "5.0"),
    ("int8", [100, 100], "5.66"),
    ("int8", [12, 5], "nan"),
    ("uint8", [100, 100], "5.66"),
    ("int16", [256, 256], "0.0"),
    ("int32", [65536, 10000], "10000.0"),
)
for dtype, numbers, seen in cases:
    lazy = da.from_array(np.array(numbers, dtype), chunks=2)
    found = str(round(float(da.linalg.norm(lazy).compute()), 2))
    expected = str(round(float(np.linalg.norm(np.array(numbers, dtype))), 2))
    print(f"{f'{dtype} {numbers}:':21} dask {found}, numpy {expected}")
    assert found == seen, "the behaviour has changed"
    assert expected == str(round(math.hypot(*numbers), 2)) and (found == expected) == (numbers == [3, 4])
    assert str(round(float(da.linalg.norm(lazy.astype(float)).compute()), 2)) == expected
    assert int(da.linalg.norm(lazy, ord=1).compute()) == sum(numbers)
PYTHON
