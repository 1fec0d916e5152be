#!/usr/bin/env bash
# ahrs 0.4.0: the angular distance of two rotations 90 degrees apart is 127 degrees.
#
# ahrs.utils.angular_distance(a, b) of two rotation matrices is documented as the Euclidean norm of the vector log(a @ b.T), so one would
# expect the angle of the turn from b to a, which is at most 180 degrees. But the function takes the norm of the logarithm as a matrix, in
# which each component of the vector occurs twice. So all distances are too large by a factor of sqrt(2), up to 255 degrees. Nothing warns
# of it. qad, for quaternions, is right.
#
# A way around it: divide by sqrt(2), or use qad.
#
# Seen with ahrs 0.4.0, numpy 2.4.6 and scipy 1.17.1, Python 3.11, in degrees, for a turn about (1, 2, 2) and the identity:
#   0:   angular_distance 0.0, qad 0.0
#   30:  angular_distance 42.43, qad 30.0
#   90:  angular_distance 127.28, qad 90.0
#   150: angular_distance 212.13, qad 150.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q ahrs==0.4.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from ahrs.utils.metrics import angular_distance, qad
from scipy.spatial.transform import Rotation

axis = np.array([1.0, 2.0, 2.0]) / 3
for angle, seen in ((0, 0.0), (30, 42.43), (90, 127.28), (150, 212.13)):
    rotation = Rotation.from_rotvec(angle * axis, degrees=True)
    expected = np.degrees(rotation.magnitude())
    assert np.isclose(expected, angle)
    found = float(np.degrees(angular_distance(rotation.as_matrix(), np.eye(3))).round(2))
    quaternion = np.roll(rotation.as_quat(), 1)
    by_quaternions = float(np.degrees(qad(quaternion, np.array([1.0, 0.0, 0.0, 0.0]))).round(2))
    print(f"{f'{angle}:':4} angular_distance {found}, qad {by_quaternions}")
    assert found == seen, "the behaviour has changed"
    assert by_quaternions == angle and np.isclose(found, expected * np.sqrt(2), atol=0.01)
PYTHON
