#!/usr/bin/env bash
# karlternion 1.0.8: the rotation from (1, 0, 0) to (1, 1, 0) is no rotation, and to (-1, 1, 0) it is half a turn.
#
# Quaternion.from_vectors(a, b) is documented to make a quaternion that rotates from a to b. One would expect the direction of a to be
# rotated to that of b. This holds for most vectors, whatever their lengths are, since the angle is computed from the product of a and b
# divided by both lengths. But before this, the product itself is compared to 1 and -1, to find parallel and opposite vectors, as if both
# had a length of 1. So two vectors with a product of 1 count as parallel, also if they are 45 or 79 degrees apart, and those with a product
# of -1 as opposite. Nothing warns of it. slerp_vector takes its rotation from there.
#
# A way around it: divide both vectors by their lengths.
#
# Seen with karlternion 1.0.8 and numpy 2.4.6, Python 3.11, for rotations of (1, 0, 0):
#   to (1, 1, 0):   angle 0, expected 45; with a length of 1 45
#   to (1, 5, 0):   angle 0, expected 79; with a length of 1 79
#   to (-1, 1, 0):  angle 180, expected 135; with a length of 1 135
#   to (2, 2, 0):   angle 45, expected 45; with a length of 1 45
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q karlternion==1.0.8 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from karlternion import Quaternion

a = np.array([1.0, 0.0, 0.0])


def degrees(rotation: Quaternion) -> int:
    return round(np.rad2deg(rotation.get_axis_angle()[1]))


for b, seen in (((1, 1, 0), 0), ((1, 5, 0), 0), ((-1, 1, 0), 180), ((2, 2, 0), 45)):
    target = np.array(b, dtype=float)
    unit = target / np.linalg.norm(target)
    expected = round(np.rad2deg(np.arccos(a @ unit)))
    rotation, right = Quaternion.from_vectors(a, target), Quaternion.from_vectors(a, unit)
    print(f"to {str(b) + ':':12} angle {degrees(rotation)}, expected {expected}; with a length of 1 {degrees(right)}")
    assert degrees(rotation) == seen, "the behaviour has changed"
    assert degrees(right) == expected and np.allclose(right * a, unit)
    assert np.allclose(rotation * a, unit) == (b == (2, 2, 0))
PYTHON
