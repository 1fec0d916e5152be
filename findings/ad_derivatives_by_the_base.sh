#!/usr/bin/env bash
# ad 1.5.1: the derivative of log(x, b) by the base b is 0.
#
# ad differentiates functions of numbers that adnumber() marks. admath.log takes a base, and is documented as log(x) / log(base). One
# would expect the derivative by a base that is marked, -log(x) / (b log(b)**2), as of the quotient of two logarithms. But the rule for
# log knows the derivative by x alone, and looks for marked numbers in x alone. The value is right, the derivative by b is 0, and nothing
# warns of it. So Newton's method for the base finds no step.
#
# A way around it: admath.log(x) / admath.log(b).
#
# Seen with ad 1.5.1 and numpy 2.4.1, Python 3.11, at x = 3, b = 2:
#   log(x, b):       1.585, by x 0.481, by b 0.000
#   log(x) / log(b): 1.585, by x 0.481, by b -1.143
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q ad==1.5.1 numpy==2.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import math

from ad import adnumber
from ad.admath import log

x, b = adnumber(3.0), adnumber(2.0)
for name, value, seen in (("log(x, b):", log(x, b), 0.0), ("log(x) / log(b):", log(x) / log(b), -1.143)):
    print(f"{name:16} {value.x:.3f}, by x {value.d(x):.3f}, by b {value.d(b):.3f}")
    assert math.isclose(value.x, math.log(3) / math.log(2))
    assert math.isclose(value.d(x), 1 / (3 * math.log(2)))
    assert round(value.d(b), 3) == seen, "the behaviour has changed"
assert math.isclose((log(x) / log(b)).d(b), -math.log(3) / (2 * math.log(2) ** 2))
PYTHON
