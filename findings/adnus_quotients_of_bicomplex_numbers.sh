#!/usr/bin/env bash
# adnus 0.2.4: a bicomplex number divided by itself is not 1.
#
# A bicomplex number is z + w j for complex numbers z and w, with j * j = -1 and i j = j i. The package promises full arithmetic support
# for them. One would expect x / x to be 1, and (x * y) / y to be x. Both hold if w is 0 or if z and w are real, and fail otherwise: x / y
# is computed as x times the conjugate of y, divided by the squared norm of y. This is true for quaternions. For bicomplex numbers, the
# product of y and its conjugate is not the squared norm, and need not be a real number. Nothing warns of it. Products are right.
#
# A way around it: multiply by z - w j, then divide both parts by the complex number z * z + w * w.
#
# Seen with adnus 0.2.4 and numpy 2.4.6, Python 3.11, for y = x * x:
#   x = (1+2i) + (3-1i) j: x / x (0.87-0.4i) + (-0.27-0.8i) j, y / x (3.27+3.47i) + (3.53-3.4i) j
#   x = (0+0i) + (0+1i) j: x / x (-1+0i) + (0+0i) j, y / x (0+0i) + (0-1i) j
#   x = (1+1i) + (1+0i) j: x / x (1+0i) + (0-0.67i) j, y / x (1+1.67i) + (1.67-0.67i) j
#   x = (1+0i) + (1+0i) j: x / x (1+0i) + (0+0i) j, y / x (1+0i) + (1+0i) j
#   x = (1+2i) + (0+0i) j: x / x (1+0i) + (0+0i) j, y / x (1+2i) + (0+0i) j
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q adnus==0.2.4 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from adnus import BicomplexNumber

cases = (
    (1 + 2j, 3 - 1j, "(0.87-0.4i) + (-0.27-0.8i) j"),
    (0j, 1j, "(-1+0i) + (0+0i) j"),
    (1 + 1j, 1 + 0j, "(1+0i) + (0-0.67i) j"),
    (1 + 0j, 1 + 0j, "(1+0i) + (0+0i) j"),
    (1 + 2j, 0 + 0j, "(1+0i) + (0+0i) j"),
)


def number(z: complex) -> str:
    return f"({round(z.real, 2) + 0.0:g}{round(z.imag, 2) + 0.0:+g}i)"


def parts(x: BicomplexNumber) -> tuple[complex, complex]:
    return complex(*x.z1.coeffs), complex(*x.z2.coeffs)


def text(z: complex, w: complex) -> str:
    return f"{number(z)} + {number(w)} j"


for z, w, seen in cases:
    x = BicomplexNumber(z, w)
    square = x * x
    assert parts(square) == (z * z - w * w, 2 * z * w)
    found, back = text(*parts(x / x)), text(*parts(square / x))
    print(f"x = {text(z, w)}: x / x {found}, y / x {back}")
    assert found == seen, "the behaviour has changed"
    right = (found, back) == ("(1+0i) + (0+0i) j", text(z, w))
    assert right == (w == 0 or z.imag == w.imag == 0)
    adjoint, divisor = x * BicomplexNumber(z, -w), z * z + w * w
    assert abs(parts(adjoint)[0] / divisor - 1) < 1e-12 and abs(parts(adjoint)[1]) < 1e-12
PYTHON
