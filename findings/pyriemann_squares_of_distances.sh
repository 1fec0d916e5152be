#!/usr/bin/env bash
# pyriemann 0.12: the squared power Euclidean distance of two matrices is not the square of their distance.
#
# The distances of pyriemann between positive definite matrices take squared=True, documented as "Return squared distance". One would expect
# the square of the distance without it. For the other distances it is. distance_poweuclid, which is the norm of the difference of powers
# of the matrices divided by the exponent p, squares the norm, and divides by p instead of its square. So the squared distance is wrong by
# the factor p for all p but 1, 0 and -1, which call other functions. Nothing warns of it.
#
# A way around it: distance_poweuclid(A, B, p) ** 2.
#
# Seen with pyriemann 0.12, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the matrices diag(4, 1) and diag(9, 1), whose squared distance of
# order p is ((9**p - 4**p) / p) ** 2:
#   order 0.5: distance 2, squared=True 2, expected 4
#   order 1:   distance 5, squared=True 25, expected 25
#   order 2:   distance 32.5, squared=True 2112.5, expected 1056.25
#   riemann:   distance 0.81093, squared=True 0.657608, expected 0.657608
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pyriemann==0.12 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from pyriemann.geometry.distance import distance_poweuclid, distance_riemann

a, b = np.diag([4.0, 1.0]), np.diag([9.0, 1.0])
for p in (0.5, 1, 2):
    distance, squared = distance_poweuclid(a, b, p), distance_poweuclid(a, b, p, squared=True)
    expected = ((9**p - 4**p) / p) ** 2
    title = f"order {p:g}:"
    print(f"{title:10} distance {distance:.6g}, squared=True {squared:.6g}, expected {expected:.6g}")
    assert np.isclose(distance**2, expected)
    assert np.isclose(squared, expected * p), "the behaviour has changed"
distance, squared = distance_riemann(a, b), distance_riemann(a, b, squared=True)
print(f"riemann:   distance {distance:.6g}, squared=True {squared:.6g}, expected {np.log(9 / 4) ** 2:.6g}")
assert np.isclose(squared, np.log(9 / 4) ** 2)
PYTHON
