#!/usr/bin/env bash
# spatialmath-python 1.1.18: the smallest rotation from a turn by 170 degrees to one by -170 degrees is given as 340 degrees.
#
# base.qangle(q1, q2) is documented as the angle between the rotations of two unit quaternions, the smallest rotation that is required to
# turn the first into the second. A quaternion and its negative are the same rotation, so one would expect the same angle for both, and at
# most 180 degrees. But qangle measures the angle between the quaternions as they are, and doubles it, up to 360 degrees. From a quaternion
# to its negative, the result is a full turn instead of 0. Nothing warns of it. If the angle between the quaternions is acute, it is right.
#
# A way around it: the smaller one of qangle(q1, q2) and qangle(q1, -q2).
#
# Seen with spatialmath-python 1.1.18, numpy 2.4.6 and scipy 1.17.1, Python 3.11, in degrees, for turns about x:
#   from 10 to 50:              qangle 40, scipy 40
#   from 10 to 50, as negative: qangle 320, scipy 40
#   from 170 to -170:           qangle 340, scipy 20
#   from 30 to 30, as negative: qangle 360, scipy 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q spatialmath-python==1.1.18 numpy==2.4.6 scipy==1.17.1
MPLCONFIGDIR="$folder/matplotlib" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from scipy.spatial.transform import Rotation
from spatialmath import base


def turn(degrees: float) -> np.ndarray:
    half = np.radians(degrees) / 2
    return np.array([np.cos(half), np.sin(half), 0, 0])


cases = (
    ("from 10 to 50", turn(10), turn(50), 40, 40),
    ("from 10 to 50, as negative", turn(10), -turn(50), 320, 40),
    ("from 170 to -170", turn(170), turn(-170), 340, 20),
    ("from 30 to 30, as negative", turn(30), -turn(30), 360, 0),
)
for name, first, second, seen, expected in cases:
    found = round(np.degrees(base.qangle(first, second)))
    rotations = [Rotation.from_quat(q, scalar_first=True) for q in (first, second)]
    by_scipy = round(np.degrees((rotations[0].inv() * rotations[1]).magnitude()))
    print(f"{name + ':':27} qangle {found}, scipy {by_scipy}")
    assert found == seen, "the behaviour has changed"
    assert by_scipy == expected
    assert min(found, round(np.degrees(base.qangle(first, -second)))) == expected
PYTHON
