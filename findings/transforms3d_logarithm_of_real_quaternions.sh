#!/usr/bin/env bash
# transforms3d 0.4.2: the logarithm of the quaternion 1 is 1, the square of the quaternion 2 is 1, and the root of a half turn is 0.
#
# qlog, qexp and qpow of transforms3d are functions of quaternions, and qmult is the product. One would expect log(1) = 0, exp(1) = e and
# 2**2 = 4, as for real numbers. But the three functions return 1 for every quaternion without an imaginary part. For exp(0) it is right.
# The second surprise is about integers: the result has the type of the argument, so the square root of the half turn [0, 0, 0, 1] is
# truncated to zeros. Nothing warns of either.
#
# A way around it: treat quaternions without an imaginary part apart, and pass arrays of floats.
#
# Seen with transforms3d 0.4.2 and numpy 2.4.6, Python 3.11. Expected are the results with 2x2 matrices in place of quaternions:
#   log [1.0, 0.0, 0.0, 0.0]:     [1, 0, 0, 0], expected [0, 0, 0, 0]
#   exp [1.0, 0.0, 0.0, 0.0]:     [1, 0, 0, 0], expected [2.718, 0, 0, 0]
#   exp [0.0, 0.0, 0.0, 0.0]:     [1, 0, 0, 0], expected [1, 0, 0, 0]
#   square [2.0, 0.0, 0.0, 0.0]:  [1, 0, 0, 0], expected [4, 0, 0, 0]
#   square [2.0, 0.0, 0.0, 1.0]:  [3, 0, 0, 4], expected [3, 0, 0, 4]
#   root [0.0, 0.0, 0.0, 1.0]:    [0.707, 0, 0, 0.707], expected [0.707, 0, 0, 0.707]
#   root [0, 0, 0, 1]:            [0, 0, 0, 0], expected [0.707, 0, 0, 0.707]
#   log [0, 0, 0, 1]:             [0, 0, 0, 1], expected [0, 0, 0, 1.571]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q transforms3d==0.4.2 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import scipy.linalg
from transforms3d.quaternions import qexp, qlog, qmult, qpow

# The complex matrices [[w + xi, y + zi], [-y + zi, w - xi]] have the sums and products of quaternions w + xi + yj + zk.
functions = {
    "log": (qlog, scipy.linalg.logm),
    "exp": (qexp, scipy.linalg.expm),
    "square": (lambda q: qpow(q, 2), lambda m: m @ m),
    "root": (lambda q: qpow(q, 0.5), scipy.linalg.sqrtm),
}


def by_matrices(f, q: list) -> np.ndarray:
    w, x, y, z = q
    (a, b), _ = f(np.array([[w + x * 1j, y + z * 1j], [-y + z * 1j, w - x * 1j]]))
    return np.array([a.real, a.imag, b.real, b.imag])


def text(array: np.ndarray) -> str:
    return str((np.round(array.astype(float), 3) + 0.0).tolist()).replace(".0", "")


cases = (
    ("log", [1.0, 0.0, 0.0, 0.0], "[1, 0, 0, 0]"),
    ("exp", [1.0, 0.0, 0.0, 0.0], "[1, 0, 0, 0]"),
    ("exp", [0.0, 0.0, 0.0, 0.0], "[1, 0, 0, 0]"),
    ("square", [2.0, 0.0, 0.0, 0.0], "[1, 0, 0, 0]"),
    ("square", [2.0, 0.0, 0.0, 1.0], "[3, 0, 0, 4]"),
    ("root", [0.0, 0.0, 0.0, 1.0], "[0.707, 0, 0, 0.707]"),
    ("root", [0, 0, 0, 1], "[0, 0, 0, 0]"),
    ("log", [0, 0, 0, 1], "[0, 0, 0, 1]"),
)
right = ("exp [0.0, 0.0, 0.0, 0.0]", "square [2.0, 0.0, 0.0, 1.0]", "root [0.0, 0.0, 0.0, 1.0]")
for name, q, seen in cases:
    f, reference = functions[name]
    found, expected = text(f(q)), text(by_matrices(reference, q))
    title = f"{name} {q}"
    print(f"{title + ':':29} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (title in right)
assert qmult([2.0, 0, 0, 0], [2.0, 0, 0, 0]).tolist() == [4, 0, 0, 0]
PYTHON
