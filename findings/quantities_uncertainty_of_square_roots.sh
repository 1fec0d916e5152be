#!/usr/bin/env bash
# quantities 0.16.4: the square root of 4 ± 0.4 has an uncertainty of 0, and the reciprocal has a negative one.
#
# An UncertainQuantity of quantities is a value with a unit and an uncertainty, and operators propagate the uncertainty. One would expect
# the same of np.sqrt, which gives a value with the right unit. But the uncertainty of the result is 0, although the power of 0.5 has the
# right one. np.square, np.add, np.exp, and abs lose it, too. Powers and products multiply by the value or the exponent instead of its
# absolute value, so negative exponents and negative values lead to negative uncertainties. Nothing warns of it.
#
# A way around it: operators with positive values, and u**0.5 and 1 / u.
#
# Seen with quantities 0.16.4 and numpy 2.4.6, Python 3.11. The expected uncertainty is that of first order, with independent factors:
#   u**0.5:       2.0 m, uncertainty 0.1, expected 0.1
#   np.sqrt(u):   2.0 m, uncertainty 0.0, expected 0.1
#   1 / u:        0.25 1/m**2, uncertainty 0.025, expected 0.025
#   u**-1:        0.25 1/m**2, uncertainty -0.025, expected 0.025
#   u + v:        0.0 m**2, uncertainty 0.5657, expected 0.5657
#   np.add(u, v): 0.0 m**2, uncertainty 0.0, expected 0.5657
#   u * v:        -16.0 m**4, uncertainty -2.2627, expected 2.2627
#   v**2:         16.0 m**4, uncertainty -3.2, expected 3.2
#   abs(v):       4.0 m**2, uncertainty 0.0, expected 0.4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q quantities==0.16.4 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import math

import numpy as np
import quantities as pq

u = pq.UncertainQuantity(4.0, "m**2", 0.4)
v = pq.UncertainQuantity(-4.0, "m**2", 0.4)
# The derivative of each function is worked out by hand, and multiplied by the uncertainty of 0.4.
cases = (
    ("u**0.5", lambda: u**0.5, 0.4 / 4, 0.1),
    ("np.sqrt(u)", lambda: np.sqrt(u), 0.4 / 4, 0),
    ("1 / u", lambda: 1 / u, 0.4 / 16, 0.025),
    ("u**-1", lambda: u**-1, 0.4 / 16, -0.025),
    ("u + v", lambda: u + v, math.hypot(0.4, 0.4), 0.5657),
    ("np.add(u, v)", lambda: np.add(u, v), math.hypot(0.4, 0.4), 0),
    ("u * v", lambda: u * v, math.hypot(4 * 0.4, 4 * 0.4), -2.2627),
    ("v**2", lambda: v**2, 8 * 0.4, -3.2),
    ("abs(v)", lambda: abs(v), 0.4, 0),
)
for name, f, expected, seen in cases:
    result = f()
    found = round(float(result.uncertainty.magnitude), 4)
    value = f"{round(float(result.magnitude), 4)} {result.dimensionality}"
    print(f"{name + ':':13} {value}, uncertainty {found}, expected {round(expected, 4)}")
    assert found == seen, "the behaviour has changed"
    assert (found == round(expected, 4)) == (name in ("u**0.5", "1 / u", "u + v"))
PYTHON
