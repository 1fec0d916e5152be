#!/usr/bin/env bash
# hurwitz 1.1.1: the square of (1 + i + j + k)/2, whose norm is 1, is -1 + i + j + k, whose norm is 2.
#
# Hurwitz quaternions have four integers as components, or four halves of odd integers, for which HurwitzQuaternion takes the numerators
# and half=True. One would expect the product of two of them to be that of quaternions, whose norm is the product of the norms, and x times
# its inverse to be 1. The product of two halves is twice as large as it should be, since its denominator of 4 is taken as 2, and so is that
# of a half and an integer quaternion. That of an integer quaternion and a half, in this order, is right. The norms are not multiplied, and
# x times x.inverse() is 2. Nothing warns of it. Sums are right.
#
# A way around it: multiply the components.
#
# Seen with hurwitz 1.1.1, Python 3.11, for h = (1 + i + j + k)/2:
#   h * h:           (-1, 1, 1, 1), expected (-0.5, 0.5, 0.5, 0.5)
#   h * h.inverse(): (2, 0, 0, 0), expected (1, 0, 0, 0)
#   h * 2:           (1, 1, 1, 1), expected (1, 1, 1, 1)
#   h * (2 + 0i):    (2, 2, 2, 2), expected (1, 1, 1, 1)
#   (2 + 0i) * h:    (1, 1, 1, 1), expected (1, 1, 1, 1)
#   h + h:           (1, 1, 1, 1), expected (1, 1, 1, 1)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q hurwitz==1.1.1
"$folder/venv/bin/python" - <<'PYTHON'
from hurwitz.hurwitz import HurwitzQuaternion

h, two = HurwitzQuaternion(1, 1, 1, 1, half=True), HurwitzQuaternion(2, 0, 0, 0)


def product(x: HurwitzQuaternion, y: HurwitzQuaternion) -> tuple[float, ...]:
    (a, b, c, d), (e, f, g, k) = x.general, y.general
    parts = (a * e - b * f - c * g - d * k, a * f + b * e + c * k - d * g)
    return (*parts, a * g - b * k + c * e + d * f, a * k + b * g - c * f + d * e)


def text(components: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{component:g}" for component in components) + ")"


cases = (
    ("h * h", h * h, product(h, h), "(-1, 1, 1, 1)"),
    ("h * h.inverse()", h * h.inverse(), product(h, h.inverse()), "(2, 0, 0, 0)"),
    ("h * 2", h * 2, product(h, two), "(1, 1, 1, 1)"),
    ("h * (2 + 0i)", h * two, product(h, two), "(2, 2, 2, 2)"),
    ("(2 + 0i) * h", two * h, product(two, h), "(1, 1, 1, 1)"),
    ("h + h", h + h, product(h, two), "(1, 1, 1, 1)"),
)
assert h.norm() == 1 and h.general == (0.5, 0.5, 0.5, 0.5)
for name, result, right, seen in cases:
    found, expected = text(result.general), text(right)
    print(f"{name + ':':16} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (name in ("h * 2", "(2 + 0i) * h", "h + h"))
assert (h * h).norm() == 2
PYTHON
