#!/usr/bin/env bash
# rowan 1.3.2: the first power of the quaternion -1 is 1, and the third power of -2 is 8.
#
# rowan has functions of arrays of quaternions. One would expect that the first power of a quaternion is the quaternion itself, and that exp
# undoes log. rowan.power computes exp(n * log(q)). In log, the imaginary part is an angle times the direction of the imaginary part of q.
# If the latter is below 1e-8, the code sets it to zero instead of multiplying the angle, which is pi for a negative real part, by any
# direction. So the sign is lost: log(-2) is log(2). Quaternions below 1e-8 count as zero, and their powers are zero. Nothing warns of it.
# With a larger imaginary part, rowan is right, and numpy-quaternion is right in all cases.
#
# A way around it: rowan.multiply for whole powers, and powers of numpy-quaternion for others.
#
# Seen with rowan 1.3.2, numpy-quaternion 2024.0.13 and numpy 2.4.6, Python 3.11, for real parts:
#   (-1) ** 1:          rowan 1, numpy-quaternion -1, expected -1
#   (-2) ** 3:          rowan 8, numpy-quaternion -8, expected -8
#   (-2) ** -1:         rowan 0.5, numpy-quaternion -0.5, expected -0.5
#   (-2) ** 2:          rowan 4, numpy-quaternion 4, expected 4
#   exp(log(-2)):       rowan 2, numpy-quaternion -2, expected -2
#   (-2 + 1e-9i) ** 1:  rowan 2, numpy-quaternion -2, expected -2
#   (-2 + 0.001i) ** 1: rowan -2, numpy-quaternion -2, expected -2
#   (1e-9) ** 1:        rowan 0, numpy-quaternion 1e-09, expected 1e-09
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q rowan==1.3.2 numpy-quaternion==2024.0.13 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import quaternion  # noqa: F401, it adds np.quaternion
import rowan

cases = (
    ("(-1) ** 1", [-1, 0, 0, 0], 1, 1.0),
    ("(-2) ** 3", [-2, 0, 0, 0], 3, 8.0),
    ("(-2) ** -1", [-2, 0, 0, 0], -1, 0.5),
    ("(-2) ** 2", [-2, 0, 0, 0], 2, 4.0),
    ("exp(log(-2))", [-2, 0, 0, 0], None, 2.0),
    ("(-2 + 1e-9i) ** 1", [-2, 1e-9, 0, 0], 1, 2.0),
    ("(-2 + 0.001i) ** 1", [-2, 1e-3, 0, 0], 1, -2.0),
    ("(1e-9) ** 1", [1e-9, 0, 0, 0], 1, 0.0),
)
for name, elements, n, seen in cases:
    q, other = np.array(elements, float), np.quaternion(*elements)
    found = (rowan.exp(rowan.log(q)) if n is None else rowan.power(q, n))[0]
    by_other = (np.exp(np.log(other)) if n is None else other**n).w
    expected = (complex(q[0], q[1]) ** (1 if n is None else n)).real
    print(f"{name + ':':19} rowan {found:.6g}, numpy-quaternion {by_other:.6g}, expected {expected:.6g}")
    assert np.isclose(found, seen, atol=0), "the behaviour has changed"
    assert np.isclose(by_other, expected, atol=0)
    assert (seen == np.float64(f"{expected:.6g}")) == (name in ("(-2) ** 2", "(-2 + 0.001i) ** 1"))
cube = rowan.multiply(rowan.multiply([-2.0, 0, 0, 0], [-2.0, 0, 0, 0]), [-2.0, 0, 0, 0])
assert np.array_equal(cube, [-8, 0, 0, 0])
PYTHON
