#!/usr/bin/env bash
# numkong 7.8.6: converted to float8, 100,000 becomes NaN, and NaN becomes infinity or 448.
#
# numkong converts arrays to the float8 formats of the Open Compute Project: E5M2, which has infinities, and E4M3, which has none.
# One would expect that numbers above the range of E5M2 become infinity, and that NaN stays NaN in both. Single numbers and arrays
# of float64 are converted in this way. In an array of float32, 65,536 and 131,072 become infinity as well, but the integers from
# 73,729 to 122,879 become NaN: they are rounded as if E5M2 had a further exponent, and that one encodes infinity and NaN. NaN in
# turn becomes infinity in E5M2, and 448, the largest number, in E4M3, so no test of the result finds it. Arrays of bfloat16 are
# converted like those of float32. numkong chooses its code for the processor, and this is the code for x86-64 with AVX2.
#
# A way around it: nk.astype(x.astype(np.float64), "e5m2").
#
# Seen with numkong 7.8.6 and numpy 2.4.6 on a CPU (x86-64), Python 3.11, for [57344, 65536, 100000, 131072, inf, nan]:
#   e5m2, numbers: [57344.0, inf, inf, inf, inf, nan]
#   e5m2, float64: [57344.0, inf, inf, inf, inf, nan]
#   e5m2, float32: [57344.0, inf, nan, inf, inf, inf]
#   e4m3, numbers: [448.0, 448.0, 448.0, 448.0, 448.0, nan]
#   e4m3, float64: [448.0, 448.0, 448.0, 448.0, 448.0, nan]
#   e4m3, float32: [448.0, 448.0, 448.0, 448.0, 448.0, 448.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numkong==7.8.6 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numkong as nk
import numpy as np

nan, inf = float("nan"), float("inf")
x = [57344.0, 65536.0, 100000.0, 131072.0, inf, nan]
formats = {
    "e5m2": (nk.float8_e5m2, [57344.0, inf, inf, inf, inf, nan], [57344.0, inf, nan, inf, inf, inf]),
    "e4m3": (nk.float8_e4m3, [448.0] * 5 + [nan], [448.0] * 6),
}
for name, (number, right, wrong) in formats.items():
    arrays = [np.asarray(nk.astype(np.array(x, dtype), name).astype("f32")) for dtype in (np.float64, np.float32)]
    found = [[float(number(value)) for value in x], *(array.tolist() for array in arrays)]
    for what, results in zip(("numbers", "float64", "float32"), found):
        print(f"{name}, {what}: {results}")
    assert str(found) == str([right, right, wrong]), "the behaviour has changed"
PYTHON
