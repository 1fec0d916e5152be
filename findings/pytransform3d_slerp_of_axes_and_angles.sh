#!/usr/bin/env bash
# pytransform3d 3.17.0: halfway from no rotation to a turn about y, axis_angle_slerp turns about another axis.
#
# pytransform3d has spherical linear interpolation of rotations as matrices, quaternions, rotors, and axes with angles. The result does not
# depend on the representation by definition: a turn about a fixed axis, with a constant speed, from the first rotation to the second one.
# One would expect the same rotation from all four functions. matrix_slerp, quaternion_slerp and rotor_slerp agree. But axis_angle_slerp
# interpolates the axis and the angle separately. For two turns about one axis it is right. Between turns about x and y it takes a detour,
# and no rotation, which has no axis, is taken for a turn about x. Nothing warns of it.
#
# A way around it: quaternion_slerp of quaternion_from_axis_angle.
#
# Seen with pytransform3d 3.17.0, numpy 2.4.6 and scipy 1.17.1, Python 3.11. An axis is a vector, and its length is the angle in degrees.
# Expected is the interpolation of scipy:
#   30 about z to 90 about z: halfway [0, 0, 60], by quaternions [0, 0, 60], expected [0, 0, 60]
#   0 about x to 90 about y:  halfway [31.82, 31.82, 0], by quaternions [0, 45, 0], expected [0, 45, 0]
#   0 about y to 90 about y:  halfway [31.82, 31.82, 0], by quaternions [0, 45, 0], expected [0, 45, 0]
#   90 about x to 90 about y: halfway [63.64, 63.64, 0], by quaternions [49.87, 49.87, 0], expected [49.87, 49.87, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pytransform3d==3.17.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pytransform3d.rotations as pr
from scipy.spatial.transform import Rotation, Slerp

axes = {"x": [1.0, 0, 0], "y": [0.0, 1, 0], "z": [0.0, 0, 1]}
cases = (
    ((30, "z"), (90, "z"), "[0, 0, 60]"),
    ((0, "x"), (90, "y"), "[31.82, 31.82, 0]"),
    ((0, "y"), (90, "y"), "[31.82, 31.82, 0]"),
    ((90, "x"), (90, "y"), "[63.64, 63.64, 0]"),
)


def text(vector: np.ndarray) -> str:
    return str((np.round(vector, 2) + 0.0).tolist()).replace(".0", "")


def vector(axis_angle: np.ndarray) -> np.ndarray:
    return axis_angle[:3] * np.degrees(axis_angle[3])


for start, end, seen in cases:
    first, second = (np.array([*axes[name], np.radians(angle)]) for angle, name in (start, end))
    found = text(vector(pr.axis_angle_slerp(first, second, 0.5)))
    quaternions = (pr.quaternion_from_axis_angle(rotation) for rotation in (first, second))
    by_quaternions = text(vector(pr.axis_angle_from_quaternion(pr.quaternion_slerp(*quaternions, 0.5))))
    matrix = pr.matrix_slerp(*(pr.matrix_from_axis_angle(rotation) for rotation in (first, second)), 0.5)
    both = Rotation.from_rotvec([vector(rotation) for rotation in (first, second)], degrees=True)
    half = Slerp([0, 1], both)(0.5)
    expected = text(half.as_rotvec(degrees=True))
    title = f"{start[0]} about {start[1]} to {end[0]} about {end[1]}:"
    print(f"{title:25} halfway {found}, by quaternions {by_quaternions}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert by_quaternions == expected and np.allclose(matrix, half.as_matrix())
    assert (found == expected) == (start == (30, "z"))
PYTHON
