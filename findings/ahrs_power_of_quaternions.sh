#!/usr/bin/env bash
# ahrs 0.4.0: the first power of a quaternion is not the quaternion itself.
#
# q**a, for a unit quaternion q of ahrs, is documented as exp(a * log(q)), with the cosine of a multiple of the angle as its real part. So
# one would expect q**1 to be q, q**2 to be q * q, and q**-1 to be the inverse. But the code raises Euler's number to each of the four
# components of a * log(q) on its own, instead of the exponential of a quaternion. All powers of unit quaternions have the real part 1, and
# q**0 is 1 in all four components. Nothing warns of it. The logarithm, the exponential and the product are right.
#
# A way around it, unless a is 0: Quaternion(a * q.logarithm, versor=False).exponential.
#
# Seen with ahrs 0.4.0 and numpy 2.4.6, Python 3.11, for q = 0.6 + 0.8i:
#   q**1:   [1, 2.5277, 1, 1], expected [0.6, 0.8, 0, 0]
#   q**2:   [1, 6.3891, 1, 1], expected [-0.28, 0.96, 0, 0]
#   q**-1:  [1, 0.3956, 1, 1], expected [0.6, -0.8, 0, 0]
#   q**0:   [1, 1, 1, 1], expected [1, 0, 0, 0]
#   q**0.5: [1, 1.5899, 1, 1], expected [0.8944, 0.4472, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q ahrs==0.4.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from ahrs import Quaternion

q = Quaternion([0.6, 0.8, 0.0, 0.0])
number = 0.6 + 0.8j  # Without j and k, the quaternion is a complex number.


def text(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value + 0.0:g}" for value in np.round(np.asarray(values), 4)) + "]"


cases = (
    (1, "[1, 2.5277, 1, 1]"),
    (2, "[1, 6.3891, 1, 1]"),
    (-1, "[1, 0.3956, 1, 1]"),
    (0, "[1, 1, 1, 1]"),
    (0.5, "[1, 1.5899, 1, 1]"),
)
for exponent, seen in cases:
    power = number**exponent
    found, expected = text(q**exponent), text([power.real, power.imag, 0, 0])
    print(f"{f'q**{exponent}:':7} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert found != expected
    if exponent != 0:  # ahrs refuses to make the quaternion 0.
        assert text(Quaternion(exponent * q.logarithm, versor=False).exponential) == expected
assert text(q * q) == "[-0.28, 0.96, 0, 0]" and text(q.inverse) == "[0.6, -0.8, 0, 0]"
PYTHON
