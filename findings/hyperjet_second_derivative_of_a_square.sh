#!/usr/bin/env bash
# hyperjet 1.5.0: after x *= x, the second derivative is 12 instead of 2.
#
# A DDScalar of hyperjet is a number with its first and second derivatives, and operators compute those of the result. One would expect
# x *= x to give what x * x gives. The value and the first derivatives are the same, and the second ones are not: x *= x overwrites the
# first derivatives while it still needs the old ones. At x = 3, the second derivative of the square is 12, and that of a square root,
# squared in place, is 0.41 instead of 0. Nothing warns of it. x += x, x -= x and x /= x are right.
#
# A way around it: x = x * x.
#
# Seen with hyperjet 1.5.0 and numpy 2.4.6, Python 3.11, for functions of x = 3 and y = 2, where differences are central differences of the
# squared function:
#   x:       z *= z [[12, 0], [0, 0]], z * z [[2, 0], [0, 0]], differences [[2, 0], [0, 0]]
#   x * y:   z *= z [[96, 156], [156, 216]], z * z [[8, 24], [24, 18]], differences [[8, 24], [24, 18]]
#   sqrt(x): z *= z [[0.41, 0], [0, 0]], z * z [[0, 0], [0, 0]], differences [[0, 0], [0, 0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q hyperjet==1.5.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import math
from collections.abc import Callable

import hyperjet
import numpy as np

point, step = np.array([3.0, 2.0]), 1e-3


def differences(f: Callable) -> np.ndarray:
    def at(shift: np.ndarray) -> float:
        return float(f(*(point + shift))) ** 2

    a, b = step * np.eye(2)
    along = [(at(s) - 2 * at(0 * s) + at(-s)) / step**2 for s in (a, b)]
    mixed = (at(a + b) - at(a - b) - at(b - a) + at(-a - b)) / (4 * step**2)
    return np.array([[along[0], mixed], [mixed, along[1]]])


def text(array: np.ndarray) -> str:
    return str((np.round(array, 2) + 0.0).tolist()).replace(".0", "")


cases = (
    ("x", lambda x, y: x, "[[12, 0], [0, 0]]"),
    ("x * y", lambda x, y: x * y, "[[96, 156], [156, 216]]"),
    ("sqrt(x)", lambda x, y: x.sqrt() if isinstance(x, hyperjet.DDScalar) else math.sqrt(x), "[[0.41, 0], [0, 0]]"),
)
for name, f, seen in cases:
    product = f(*hyperjet.DDScalar.variables(point.tolist()))
    product = product * product
    in_place = f(*hyperjet.DDScalar.variables(point.tolist()))
    in_place *= in_place
    assert in_place.f == product.f and np.array_equal(in_place.g, product.g)
    found, right, expected = text(in_place.hm()), text(product.hm()), text(differences(f))
    print(f"{name + ':':8} z *= z {found}, z * z {right}, differences {expected}")
    assert found == seen, "the behaviour has changed"
    assert right == expected != found
PYTHON
