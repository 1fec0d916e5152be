#!/usr/bin/env bash
# unyt 3.2.0: np.einsum multiplies lengths by lengths and gives a length.
#
# unyt adds physical units to numpy arrays, and numpy's functions keep track of them. One would expect the unit of a result to follow
# from the formula: metres times metres are square metres, whichever function multiplies. np.matmul and np.linalg.det of one matrix
# do so. np.einsum gives the product the unit of one factor, for two factors and for three, and refuses factors of different units.
# np.linalg.det of a stack of 3x3 matrices takes the number of matrices for their size, so that two matrices give square metres. The
# factor L of np.linalg.cholesky has the unit of L times its transpose. The numbers are right, and nothing warns of the units.
#
# A way around it: use @ and np.multiply, take the determinants one by one, and correct the unit of the Cholesky factor.
#
# Seen with unyt 3.2.0 and numpy 2.4.6, Python 3.11:
#   a @ a:                                        25 m**2
#   np.einsum("i,i->", a, a):                     25 m, expected m**2
#   np.einsum("i,i,i->", a, a, a):                91 m, expected m**3
#   np.linalg.det(matrix):                        8 m**3
#   np.linalg.det(np.stack([matrix, matrix]))[0]: 8 m**2, expected m**3
#   np.linalg.cholesky(areas)[0, 0]:              2 m**2, expected m
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q unyt==3.2.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import unyt

a = unyt.unyt_array([3.0, 4.0], "m")
matrix = unyt.unyt_array(2 * np.eye(3), "m")
areas = unyt.unyt_array(4 * np.eye(2), "m**2")
cases = (
    ("a @ a", 25, "m**2", "m**2"),
    ('np.einsum("i,i->", a, a)', 25, "m", "m**2"),
    ('np.einsum("i,i,i->", a, a, a)', 91, "m", "m**3"),
    ("np.linalg.det(matrix)", 8, "m**3", "m**3"),
    ("np.linalg.det(np.stack([matrix, matrix]))[0]", 8, "m**2", "m**3"),
    ("np.linalg.cholesky(areas)[0, 0]", 2, "m**2", "m"),
)
for formula, number, unit, expected in cases:
    found = eval(formula)
    print(f"{formula}: {found.value:.6g} {found.units}" + ("" if unit == expected else f", expected {expected}"))
    assert np.isclose(found.value, number)
    assert found.units == unyt.Unit(unit), "the behaviour has changed"
factor = np.linalg.cholesky(areas)
assert np.array_equal((factor @ factor.T).value, areas.value) and (factor @ factor.T).units == areas.units**2
try:
    np.einsum("i,i->", a, unyt.unyt_array([3.0, 4.0], "s"))
except unyt.exceptions.UnitInconsistencyError:
    pass
else:
    raise AssertionError("the behaviour has changed")
PYTHON
