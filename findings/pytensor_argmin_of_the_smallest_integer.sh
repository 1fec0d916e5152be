#!/usr/bin/env bash
# pytensor 3.0.7: the smallest of the int8 numbers -128 and 5 is the second one.
#
# pt.argmin(x) is the index of the smallest element of x, and one would expect 0 for [-128, 5], as for [-127, 5]. But pytensor looks for
# the largest element of -x, and the negative of the smallest integer of a type is that integer again. So -128 counts as the largest
# element. The same happens with the smallest int16, int32 and int64. pt.min is right if its graph is optimized, and with
# optimizer="fast_compile" it is 5, too. Nothing warns of it. Unsigned types, sort and argsort are right.
#
# A way around it: pt.argsort(x)[0].
#
# Seen with pytensor 3.0.7 and numpy 2.4.6, Python 3.11, and with pytensor 3.3.8 and Python 3.12. The two numbers of min are those of a
# graph that is optimized, and of one that is not:
#   int8 [-127, 5]: argmin 0, expected 0; argsort[0] 0; min -127, -127
#   int8 [-128, 5]: argmin 1, expected 0; argsort[0] 0; min -128, 5
#   int16 [-32768, 5]: argmin 1, expected 0; argsort[0] 0; min -32768, 5
#   int64 [-9223372036854775808, 5]: argmin 1, expected 0; argsort[0] 0; min -9223372036854775808, 5
#   uint8 [0, 5]: argmin 0, expected 0; argsort[0] 0; min 0, 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pytensor==3.0.7 numpy==2.4.6
PYTENSOR_FLAGS="base_compiledir=$folder/cache,cxx=" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

optimized, plain = Mode(linker="py", optimizer="fast_run"), Mode(linker="py", optimizer="fast_compile")
cases = (
    ("int8", -127, 0, -127),
    ("int8", -128, 1, 5),
    ("int16", -(2**15), 1, 5),
    ("int64", -(2**63), 1, 5),
    ("uint8", 0, 0, 0),
)
for dtype, first, seen, seen_minimum in cases:
    values = np.array([first, 5], dtype)
    x = pt.vector("x", dtype=dtype)
    outputs = [pt.argmin(x), pt.argsort(x)[0], pt.min(x)]
    found, by_sorting, minimum = (int(result) for result in pytensor.function([x], outputs, mode=optimized)(values))
    same, _, plain_minimum = (int(result) for result in pytensor.function([x], outputs, mode=plain)(values))
    expected = int(np.argmin(values))
    title = f"{dtype} {values.tolist()}: argmin {found}, expected {expected}"
    print(f"{title}; argsort[0] {by_sorting}; min {minimum}, {plain_minimum}")
    assert found == same == seen and plain_minimum == seen_minimum, "the behaviour has changed"
    assert by_sorting == expected == 0 and minimum == first
PYTHON
