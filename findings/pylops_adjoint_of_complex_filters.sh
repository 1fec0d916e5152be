#!/usr/bin/env bash
# pylops 2.8.0: the adjoint of a convolution by a complex filter is right in two dimensions, and wrong in one.
#
# Convolve1D and Convolve2D of pylops are linear operators: op @ x is the convolution of x and a filter, and op.H is the adjoint, which
# pylops needs to solve equations. The filter and x can be complex. One would expect op.H to be the conjugate transpose of the matrix of
# op. For Convolve2D it is. For Convolve1D, it is the transpose: the filter is reversed, and not conjugated. So op / y, which solves
# op @ x = y by least squares, gives wrong numbers. Nothing warns of it. For method="fft", it is the same.
#
# A way around it: Convolve2D with a filter of one row.
#
# Seen with pylops 2.8.0 and numpy 2.4.6, Python 3.11, for the filter [1, 0.5j], x = [1, 2, 3] and y = [0, 1, 0]. The products
# <y, op x> and <op.H y, x> are the same number by the definition of an adjoint:
#   Convolve1D, direct: op.H y [0.5j, 1, 0], expected [-0.5j, 1, 0]; <y, op x> 2+0.5j, <op.H y, x> 2-0.5j
#   Convolve1D, fft:    op.H y [0.5j, 1, 0], expected [-0.5j, 1, 0]; <y, op x> 2+0.5j, <op.H y, x> 2-0.5j
#   Convolve2D:         op.H y [-0.5j, 1, 0], expected [-0.5j, 1, 0]; <y, op x> 2+0.5j, <op.H y, x> 2+0.5j
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pylops==2.8.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from pylops.signalprocessing import Convolve1D, Convolve2D

h, x, y = (np.array(values, dtype=complex) for values in ([1, 0.5j], [1, 2, 3], [0, 1, 0]))
matrix = np.array([[1, 0, 0], [0.5j, 1, 0], [0, 0.5j, 1]])
operators = (
    ("Convolve1D, direct", Convolve1D(3, h, method="direct", dtype="complex128"), "[0.5j, 1, 0]"),
    ("Convolve1D, fft", Convolve1D(3, h, method="fft", dtype="complex128"), "[0.5j, 1, 0]"),
    ("Convolve2D", Convolve2D((1, 3), h[None], dtype="complex128"), "[-0.5j, 1, 0]"),
)


def number(z: complex) -> str:
    real, imag = round(z.real, 9) + 0.0, round(z.imag, 9) + 0.0
    return f"{real:g}" if imag == 0 else f"{imag:g}j" if real == 0 else f"{real:g}{imag:+g}j"


def text(array: np.ndarray) -> str:
    return "[" + ", ".join(map(number, array)) + "]"


for name, op, seen in operators:
    forward = np.array([op.matvec(e) for e in np.eye(3, dtype=complex)]).T
    adjoint = np.array([op.H.matvec(e) for e in np.eye(3, dtype=complex)]).T
    assert np.allclose(forward, matrix) and np.allclose(op.matvec(x), np.convolve(x, h)[:3])
    found, expected = text(op.H.matvec(y)), text(matrix.conj().T @ y)
    products = f"<y, op x> {number(np.vdot(y, op.matvec(x)))}, <op.H y, x> {number(np.vdot(op.H.matvec(y), x))}"
    print(f"{name + ':':19} op.H y {found}, expected {expected}; {products}")
    assert found == seen, "the behaviour has changed"
    wrong = name.startswith("Convolve1D")
    assert np.allclose(adjoint, matrix.T) == wrong and np.allclose(adjoint, matrix.conj().T) != wrong
    assert np.allclose(op / op.matvec(x), x) != wrong
PYTHON
