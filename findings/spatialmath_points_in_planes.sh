#!/usr/bin/env bash
# spatialmath-python 1.1.18: a plane made from a point and a normal does not contain the point, but its mirror image.
#
# Plane3 holds the coefficients [a, b, c, d] of a plane a x + b y + c z + d = 0, as its documentation says. Plane3.PointNormal makes a plane
# through a point, and plane.contains(p) tests whether a point is in the plane. One would expect that the first point is. The coefficients
# are right, but contains computes a x + b y + c z - d, so it is right for planes through the origin only, and true for points on the other
# side of the origin. Plane3.LinePoint, a plane through a line and a point, leaves the moment of the line out of the normal: the plane
# contains the line, and misses the point unless the line runs through the origin. Nothing warns of it.
#
# A way around it: compare plane.n @ p + plane.d with 0, and use Plane3.ThreePoints instead of Plane3.LinePoint.
#
# Seen with spatialmath-python 1.1.18, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the point p = (0, 0, 3):
#   PointNormal(p, z):                coefficients [0, 0, 1, -3], contains p False, contains -p True
#   ThreePoints(p, p + x, p + y):     coefficients [0, 0, 1, -3], contains p False, contains -p True
#   PointNormal(p, x):                coefficients [1, 0, 0, 0], contains p True, contains -p True
#   LinePoint(x axis moved by y, p):  distance of p 1, expected 0
#   LinePoint(x axis, p + y):         distance of p + y 0, expected 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q spatialmath-python==1.1.18 numpy==2.4.6 scipy==1.17.1
MPLCONFIGDIR="$folder/matplotlib" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from spatialmath import Line3, Plane3

x, y, z = np.eye(3)
p = 3 * z


def distance(plane: Plane3, point: np.ndarray) -> float:
    return abs(plane.n @ point + plane.d) / np.linalg.norm(plane.n)


planes = (
    ("PointNormal(p, z)", Plane3.PointNormal(p, z), False),
    ("ThreePoints(p, p + x, p + y)", Plane3.ThreePoints(np.array([p, p + x, p + y]).T), False),
    ("PointNormal(p, x)", Plane3.PointNormal(p, x), True),
)
for name, plane, right in planes:
    found, mirrored = bool(plane.contains(p)), bool(plane.contains(-p))
    coefficients = plane.plane.astype(int).tolist()
    print(f"{name + ':':33} coefficients {coefficients}, contains p {found}, contains -p {mirrored}")
    assert distance(plane, p) == 0 and (distance(plane, -p) == 0) == right
    assert found == right and mirrored, "the behaviour has changed"

lines = (
    ("LinePoint(x axis moved by y, p)", "p", y, p, 1.0),
    ("LinePoint(x axis, p + y)", "p + y", 0 * y, p + y, 0.0),
)
for name, of, start, point, seen in lines:
    plane = Plane3.LinePoint(Line3.Join(start, start + x), point)
    found = distance(plane, point)
    print(f"{name + ':':33} distance of {of} {found:g}, expected 0")
    assert distance(plane, start) == distance(plane, start + x) == 0
    assert found == seen, "the behaviour has changed"
    assert distance(Plane3.ThreePoints(np.array([start, start + x, point]).T), point) == 0
PYTHON
