#!/usr/bin/env bash
# pymanopt 2.2.1: on the complex unit circle, exp leads from 1 to 0.54 instead of 0.54 + 0.84i, which is no point of the circle.
#
# ComplexCircle(n) of pymanopt is the manifold of n complex numbers with an absolute value of 1. exp(x, v) goes from the point x into the
# direction v along the shortest way, and one would expect a point of the manifold, as retraction(x, v) gives an approximation of it. From
# 1, the direction i leads to exp(i) = 0.54 + 0.84i. The result is written to an array of real numbers, so the imaginary part is lost, also
# for v = 0. The result is not on the manifold, and log(x, exp(x, v)) is not v. numpy warns that an imaginary part is discarded. Sphere(2),
# the circle of real vectors, is right.
#
# A way around it: x * np.exp(1j * (x.conj() * v).imag).
#
# Seen with pymanopt 2.2.1 and numpy 2.4.6, Python 3.11, where v goes round the circle by the given angle:
#   x = 1, angle 1:    exp 0.54, expected 0.54+0.84i, retraction 0.71+0.71i
#   x = i, angle 0.5:  exp -0.48, expected -0.48+0.88i, retraction -0.45+0.89i
#   x = i, angle 0:    exp 0, expected 0+1i, retraction 0+1i
#   Sphere(2), angle 1: exp [0.54, 0.84], expected [0.54, 0.84]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pymanopt==2.2.1 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from pymanopt.manifolds import ComplexCircle, Sphere

manifold = ComplexCircle(1)


def text(z: complex) -> str:
    real, imag = round(z.real, 2) + 0.0, round(z.imag, 2) + 0.0
    return f"{real:g}{imag:+g}i" if imag else f"{real:g}"


for name, point, angle, seen in (("1", 1, 1.0, "0.54"), ("i", 1j, 0.5, "-0.48"), ("i", 1j, 0.0, "0")):
    x = np.array([point], dtype=complex)
    v = 1j * angle * x
    expected, found, near = x * np.exp(1j * (x.conj() * v).imag), manifold.exp(x, v), manifold.retraction(x, v)
    print(f"x = {name}, angle {angle:g}:".ljust(18), end=" ")
    print(f"exp {text(complex(found[0]))}, expected {text(expected[0])}, retraction {text(near[0])}")
    assert np.array_equal(manifold.projection(x, v), v) and np.isclose(abs(near[0]), 1)
    assert np.isclose(expected[0], point * np.exp(1j * angle))
    assert text(complex(found[0])) == seen, "the behaviour has changed"
    assert not np.isclose(abs(found[0]), 1)

x, v = np.array([1.0, 0.0]), np.array([0.0, 1.0])
found = np.round(Sphere(2).exp(x, v), 2).tolist()
print(f"Sphere(2), angle 1: exp {found}, expected [0.54, 0.84]")
assert found == [0.54, 0.84]
PYTHON
