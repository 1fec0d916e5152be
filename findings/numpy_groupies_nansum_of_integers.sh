#!/usr/bin/env bash
# numpy-groupies 0.16.0: of a group of int8 numbers, sum is 200, and nansum is -56.
#
# numpy-groupies reduces the elements of each group of an array. A prefix "nan" makes a function skip NaNs. Integers have none, so one
# would expect the same result with and without it, as numpy's sum and nansum give. But sum chooses a wider type for small integers, and
# nansum keeps the type of the elements, where the result wraps around. Of booleans, sum counts those that are true, and nansum says
# whether there is one. The mean is right both ways. The numba functions have the same problem. Nothing warns of it.
#
# A way around it: leave out the prefix, or pass dtype="int64".
#
# Seen with numpy-groupies 0.16.0 and numpy 2.4.6, Python 3.11:
#   100, 100 as int8: sum 200, nansum -56, np.sum 200, np.nansum 200
#   200, 200 as uint8: sum 400, nansum 144, np.sum 400, np.nansum 400
#   60000, 60000 as uint16: sum 120000, nansum 54464, np.sum 120000, np.nansum 120000
#   True, True as bool: sum 2, nansum True, np.sum 2, np.nansum 2
#   100, 100 as float32: sum 200.0, nansum 200.0, np.sum 200.0, np.nansum 200.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numpy-groupies==0.16.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numpy_groupies import aggregate

cases = (
    ("int8", [100, 100], -56),
    ("uint8", [200, 200], 144),
    ("uint16", [60000, 60000], 54464),
    ("bool", [True, True], True),
    ("float32", [100, 100], 200),
)
for dtype, elements, seen in cases:
    array = np.array(elements, dtype)
    groups = np.zeros(len(array), int)
    (by_sum,), (by_nansum,) = (aggregate(groups, array, func=name) for name in ("sum", "nansum"))
    numbers = ", ".join(map(str, elements))
    numpy_sums = f"np.sum {np.sum(array)}, np.nansum {np.nansum(array)}"
    print(f"{numbers} as {dtype}: sum {by_sum}, nansum {by_nansum}, {numpy_sums}")
    assert by_nansum == seen and by_nansum.dtype == dtype, "the behaviour has changed"
    assert by_sum == np.sum(array) == np.nansum(array) == aggregate(groups, array, func="nansum", dtype="int64")[0]
    assert aggregate(groups, array, func="mean")[0] == aggregate(groups, array, func="nanmean")[0] == np.mean(array)
PYTHON
