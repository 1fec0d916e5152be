#!/usr/bin/env bash
# numcodecs 0.16.6: the codec BitRound turns the NaN of NVIDIA GPUs into -0.0.
#
# BitRound keeps the given number of bits of each mantissa, so that an array, for instance one of zarr, compresses better. One would
# expect that a NaN, which often marks a missing value, remains a NaN. Whether it does depends on its bits. BitRound adds half a
# unit of the last kept bit to the number as if it were an integer. If all kept bits of the mantissa are ones, the carry runs through
# the exponent, which has only ones too, into the sign, and nothing but the sign is left. numpy.nan has one bit in its mantissa, and
# remains a NaN. But the NaN that arithmetic gives on a GPU has all of them: CUDA's headers define it as 0x7fffffff in float32 and
# 0x7fff in float16. So a missing value that comes out of a computation on a GPU becomes a zero. There is no warning.
#
# A way around it: x[np.isnan(x)] = np.nan, before the array is encoded.
#
# Seen with numcodecs 0.16.6 and numpy 2.4.6, Python 3.11, for one kept bit, for five, and for all but one:
#   float32, numpy.nan, 0x7fc00000:    [nan, nan, nan]
#   float32, NaN of CUDA, 0x7fffffff:  [-0.0, -0.0, -0.0]
#   float16, numpy.nan, 0x7e00:        [nan, nan, nan]
#   float16, NaN of CUDA, 0x7fff:      [-0.0, -0.0, -0.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numcodecs==0.16.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numcodecs import BitRound


def rounded(x: np.ndarray, keepbits: int) -> float:
    codec = BitRound(keepbits=keepbits)
    return float(codec.decode(codec.encode(x))[0])


for dtype, bits, of_cuda in ((np.float32, np.uint32, 0x7FFFFFFF), (np.float16, np.uint16, 0x7FFF)):
    nans = np.array([np.nan], dtype), np.array([of_cuda], bits).view(dtype)
    assert np.isnan(nans).all()
    kept = 1, 5, np.finfo(dtype).nmant - 1
    found = [[rounded(x, count) for count in kept] for x in nans]
    for what, x, results in zip(("numpy.nan", "NaN of CUDA"), nans, found, strict=True):
        print(f"{np.dtype(dtype)}, {what}, {x.view(bits)[0]:#x}: {results}")
    assert np.isnan(found[0]).all(), "the behaviour has changed"
    assert str(found[1]) == "[-0.0, -0.0, -0.0]", "the behaviour has changed"
PYTHON
