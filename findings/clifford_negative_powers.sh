#!/usr/bin/env bash
# clifford 1.5.1: the power of -1 of a multivector is the multivector itself.
#
# clifford has the multivectors of geometric algebra. x**n is the product of n factors x, for integers n. For a negative n, one would
# expect powers of the inverse, or an error if there is none: x.inv() and 1 / x give the inverse. But x**-1, x**-2 and so on are all x. So
# the vector 2 e1 to the power of -1 has a length of 2 instead of 0.5. Nothing warns of it. x**0.5 is an error.
#
# A way around it: x.inv()**n.
#
# Seen with clifford 1.5.1 and numpy 2.4.6, Python 3.11. Expected are the coefficients from 2x2 matrices in place of multivectors:
#   2 e1 to 2:      4, expected 4
#   2 e1 to -1:     2 e1, expected 0.5 e1
#   2 e1 to -2:     2 e1, expected 0.25
#   3 to -1:        3, expected 0.333
#   3 + e12 to 3:   18 + 26 e12, expected 18 + 26 e12
#   3 + e12 to -1:  3 + 1 e12, expected 0.3 - 0.1 e12
#   3 + e12 to -2:  3 + 1 e12, expected 0.08 - 0.06 e12
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q clifford==1.5.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from clifford.g2 import e1, e12

# Two real matrices with the square 1 that anticommute: e1, e2. Their product e12 has the square -1.
basis = [np.eye(2), np.array([[1.0, 0], [0, -1]]), np.array([[0, 1.0], [1, 0]]), np.array([[0, 1.0], [-1, 0]])]
names = ("", " e1", " e2", " e12")


def by_matrices(x: np.ndarray, n: int) -> np.ndarray:
    power = np.linalg.matrix_power(sum(c * b for c, b in zip(x, basis, strict=True)), n)
    return np.array([np.sum(power * b) / 2 for b in basis])


def text(x: np.ndarray) -> str:
    terms = [f"{c:.3g}{name}" for c, name in zip(x, names, strict=True) if abs(c) > 1e-12]
    return " + ".join(terms).replace("+ -", "- ")


cases = (
    ("2 e1", 2 * e1, 2, "4"),
    ("2 e1", 2 * e1, -1, "2 e1"),
    ("2 e1", 2 * e1, -2, "2 e1"),
    ("3", 3 + 0 * e1, -1, "3"),
    ("3 + e12", 3 + e12, 3, "18 + 26 e12"),
    ("3 + e12", 3 + e12, -1, "3 + 1 e12"),
    ("3 + e12", 3 + e12, -2, "3 + 1 e12"),
)
for name, x, n, seen in cases:
    found, expected = text((x**n).value), text(by_matrices(x.value, n))
    title = f"{name} to {n}:"
    print(f"{title:15} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (n > 0)
    assert text((x.inv() ** abs(n)).value) == text(by_matrices(x.value, -abs(n)))
PYTHON
