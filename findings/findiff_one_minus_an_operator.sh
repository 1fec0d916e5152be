#!/usr/bin/env bash
# findiff 0.16.0: the operator 1 - D is D - 1.
#
# findiff has difference operators that add, subtract and multiply as in formulas: with D = Diff(0, dx), the operator D - 1 applied to f is
# f' - f. One would expect 1 - D to give f - f'. But it gives f' - f, as D - 1 does: the subtraction from a number, or from an array,
# changes the sign of the left side instead of the right one. So the matrix of 1 - dt * D**2, for an implicit step of the heat equation,
# is the negative of the right one. Nothing warns of it. 1 + D and the difference of two operators are right.
#
# A way around it: Identity() - D.
#
# Seen with findiff 0.16.0 and numpy 2.4.6, Python 3.11, for f = x**2 at x = 0, 1, 2, 3, where the differences are exact:
#   D - 1:          [0, 1, 0, -3], expected [0, 1, 0, -3]
#   1 - D:          [0, 1, 0, -3], expected [0, -1, 0, 3]
#   1 + D:          [0, 3, 8, 15], expected [0, 3, 8, 15]
#   x - D:          [0, 1, -4, -21], expected [0, -1, 4, 21]
#   1 - D**2:       [2, 1, -2, -7], expected [-2, -1, 2, 7]
#   Identity() - D: [0, -1, 0, 3], expected [0, -1, 0, 3]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q findiff==0.16.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from findiff import Diff, Identity

x = np.arange(4.0)
f, first, second = x**2, 2 * x, np.full(4, 2.0)
d = Diff(0, 1.0)
assert np.allclose(d(f), first) and np.allclose((d**2)(f), second)
cases = (
    ("D - 1", d - 1, first - f, [0, 1, 0, -3]),
    ("1 - D", 1 - d, f - first, [0, 1, 0, -3]),
    ("1 + D", 1 + d, f + first, [0, 3, 8, 15]),
    ("x - D", x - d, x * f - first, [0, 1, -4, -21]),
    ("1 - D**2", 1 - d**2, f - second, [2, 1, -2, -7]),
    ("Identity() - D", Identity() - d, f - first, [0, -1, 0, 3]),
)
for name, operator, expected, seen in cases:
    found, by_matrix = operator(f).round(9), (operator.matrix(f.shape) @ f).round(9)
    print(f"{name + ':':15} {found.astype(int).tolist()}, expected {expected.astype(int).tolist()}")
    assert found.tolist() == by_matrix.tolist() == seen, "the behaviour has changed"
    assert np.array_equal(found, expected) == (name not in ("1 - D", "x - D", "1 - D**2"))
PYTHON
