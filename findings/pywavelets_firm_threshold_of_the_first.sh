#!/usr/bin/env bash
# PyWavelets 1.9.0: threshold_firm enlarges a large number if it is the first of the array.
#
# Firm thresholding of wavelet coefficients sets small ones to zero, shrinks those of medium size, and leaves the large ones alone:
# by the documentation, values larger than value_high "will not be modified". One would expect this of every coefficient, wherever
# it is. threshold_firm applies the formula for medium numbers to all, and then restores the large ones, if there are any. To find
# out, it passes their indices to np.any, for which the index 0 is false. So nothing is restored if the only large number is the
# first one, as it is in an array of one number, or if all large numbers are in the first row of a matrix. Beyond value_high the
# formula gives more than the number itself, so that 10 becomes 18 below, although thresholding never enlarges anything.
#
# A way around it: np.where(np.abs(x) > high, x, pywt.threshold_firm(x, low, high)).
#
# Seen with PyWavelets 1.9.0 and numpy 2.4.6, Python 3.11, for value_low = 1 and value_high = 2:
#   [10.0, 0.5, 0.5]:            [18.0, 0.0, 0.0]
#   [0.5, 10.0, 0.5]:            [0.0, 10.0, 0.0]
#   [10.0, 10.0, 0.5]:           [10.0, 10.0, 0.0]
#   [10.0]:                      [18.0]
#   [[10.0, -10.0], [0.5, 0.5]]: [[18.0, -18.0], [0.0, 0.0]]
#   [[0.5, 0.5], [10.0, -10.0]]: [[0.0, 0.0], [10.0, -10.0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q PyWavelets==1.9.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pywt

cases = (
    ([10.0, 0.5, 0.5], [18, 0, 0]),
    ([0.5, 10.0, 0.5], [0, 10, 0]),
    ([10.0, 10.0, 0.5], [10, 10, 0]),
    ([10.0], [18]),
    ([[10.0, -10.0], [0.5, 0.5]], [[18, -18], [0, 0]]),
    ([[0.5, 0.5], [10.0, -10.0]], [[0, 0], [10, -10]]),
)
for x, seen in cases:
    found = pywt.threshold_firm(np.array(x), value_low=1, value_high=2)
    print(f"{x}: {found.tolist()}")
    assert np.array_equal(found, seen), "the behaviour has changed"
PYTHON
