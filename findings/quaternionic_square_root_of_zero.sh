#!/usr/bin/env bash
# quaternionic 1.0.18: the square root of the quaternion 0 is NaN.
#
# quaternionic has arrays of quaternions on which numpy's functions work. A quaternion without the parts j and k calculates like a complex
# number, so one would expect numpy's results for complex numbers: the square root of 0 is 0, 0 to the power of 0.5 is 0, and to the power
# of 0 it is 1. All of them are NaN. The square of 0, its logarithm, and the same functions of -1 are right, and numpy-quaternion of the
# same author gives the expected results. numpy warns of a division by zero.
#
# A way around it: replace the zeros afterwards.
#
# Seen with quaternionic 1.0.18, numpy-quaternion 2024.0.13 and numpy 2.4.6, Python 3.11:
#   sqrt(0):   quaternionic [nan, nan, nan, nan], numpy-quaternion [0.0, 0.0, 0.0, 0.0], complex 0j
#   0 ** 0.5:  quaternionic [nan, nan, nan, nan], numpy-quaternion [0.0, 0.0, 0.0, 0.0], complex 0j
#   0 ** 0:    quaternionic [nan, 0.0, 0.0, 0.0], numpy-quaternion [1.0, 0.0, 0.0, 0.0], complex (1+0j)
#   0 ** 2:    quaternionic [0.0, 0.0, 0.0, 0.0], numpy-quaternion [0.0, 0.0, 0.0, 0.0], complex 0j
#   log(0):    quaternionic [-inf, 0.0, 0.0, 0.0], numpy-quaternion [-inf, 0.0, 0.0, 0.0], complex (-inf+0j)
#   sqrt(-1):  quaternionic [0.0, 1.0, 0.0, 0.0], numpy-quaternion [0.0, 1.0, 0.0, 0.0], complex 1j
#   (-1) ** 0: quaternionic [1.0, 0.0, 0.0, 0.0], numpy-quaternion [1.0, 0.0, 0.0, 0.0], complex (1+0j)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q quaternionic==1.0.18 numpy-quaternion==2024.0.13 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from collections.abc import Callable

import numpy as np
import quaternion
import quaternionic


def numbers(q: object) -> list[float]:
    return quaternion.as_float_array(q).tolist() if isinstance(q, quaternion.quaternion) else np.array(q).tolist()


cases: tuple[tuple[str, Callable, float, bool], ...] = (
    ("sqrt(0)", np.sqrt, 0.0, False),
    ("0 ** 0.5", lambda q: q**0.5, 0.0, False),
    ("0 ** 0", lambda q: q**0, 0.0, False),
    ("0 ** 2", lambda q: q**2, 0.0, True),
    ("log(0)", np.log, 0.0, True),
    ("sqrt(-1)", np.sqrt, -1.0, True),
    ("(-1) ** 0", lambda q: q**0, -1.0, True),
)
for name, f, real, right in cases:
    found = numbers(f(quaternionic.array([real, 0.0, 0.0, 0.0])))
    other = numbers(f(np.quaternion(real, 0.0, 0.0, 0.0)))
    by_complex = f(np.complex128(real))
    print(f"{name + ':':10} quaternionic {found}, numpy-quaternion {other}, complex {by_complex}")
    assert np.allclose(other, [by_complex.real, by_complex.imag, 0, 0])
    assert np.array_equal(found, other) == right, "the behaviour has changed"
    assert np.isnan(found[0]) != right, "the behaviour has changed"
PYTHON
