#!/usr/bin/env bash
# algopy 0.7.2: the gradient of a reshaped transpose is zero.
#
# algopy differentiates functions of matrices in two modes: forward, with Taylor polynomials, and reverse, with a recorded graph. One
# would expect the same gradient from both. In reverse mode, the gradient of a view is added to that of its base through memory that
# they share. But reshape has to copy if its input is a slice or a transpose, or a multiple of one, which numpy lays out alike. Then the
# gradient goes into the copy and is lost: everything before the reshape has a gradient of zero. A second problem is outer(x, y): for
# the gradient of y, reverse mode multiplies the incoming matrix by x, and should take its transpose. Nothing warns of either.
#
# A way around it: forward mode.
#
# Seen with algopy 0.7.2, numpy 2.4.6 and scipy 1.17.1, Python 3.11. Differences are central differences of the function:
#   sum of w * reshape(a, 4):       forward [1, 2, 3, 4], differences [1, 2, 3, 4], reverse [1, 2, 3, 4]
#   sum of w * reshape(a.T, 4):     forward [1, 3, 2, 4], differences [1, 3, 2, 4], reverse [0, 0, 0, 0]
#   sum of w * reshape(2 * a.T, 4): forward [2, 6, 4, 8], differences [2, 6, 4, 8], reverse [0, 0, 0, 0]
#   sum of m * outer(x, y):         forward [11, 25, 7, 10], differences [11, 25, 7, 10], reverse [11, 25, 5, 11]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q algopy==0.7.2 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
from collections.abc import Callable

import algopy
import numpy as np

w = np.array([1.0, 2.0, 3.0, 4.0])
m = w.reshape(2, 2)


def forward(f: Callable, x: np.ndarray) -> np.ndarray:
    return algopy.UTPM.extract_jacobian(f(algopy.UTPM.init_jacobian(x))).ravel()


def reverse(f: Callable, x: np.ndarray) -> np.ndarray:
    graph = algopy.CGraph()
    argument = algopy.Function(x)
    graph.independentFunctionList = [argument]
    graph.dependentFunctionList = [f(argument)]
    return graph.gradient([x])[0]


def differences(f: Callable, x: np.ndarray) -> np.ndarray:
    return np.array([(f(x + step) - f(x - step)) / 2e-3 for step in 1e-3 * np.eye(len(x))])


def matrix(x: np.ndarray) -> np.ndarray:
    return algopy.reshape(x, (2, 2))


cases = (
    ("sum of w * reshape(a, 4)", lambda x: algopy.sum(w * algopy.reshape(matrix(x), (4,))), [1, 2, 3, 4]),
    ("sum of w * reshape(a.T, 4)", lambda x: algopy.sum(w * algopy.reshape(matrix(x).T, (4,))), [0, 0, 0, 0]),
    ("sum of w * reshape(2 * a.T, 4)", lambda x: algopy.sum(w * algopy.reshape(2 * matrix(x).T, (4,))), [0, 0, 0, 0]),
    ("sum of m * outer(x, y)", lambda x: algopy.sum(m * algopy.outer(x[:2], x[2:])), [11, 25, 5, 11]),
)
point = np.array([1.0, 2.0, 3.0, 4.0])
for name, f, seen in cases:
    by_forward, by_differences, by_reverse = forward(f, point), differences(f, point), reverse(f, point)
    gradients = (by_forward, by_differences, by_reverse)
    texts = [str([int(value) for value in np.round(gradient)]) for gradient in gradients]
    print(f"{name}: forward {texts[0]}, differences {texts[1]}, reverse {texts[2]}")
    assert np.allclose(by_forward, by_differences)
    assert np.allclose(by_reverse, seen), "the behaviour has changed"
    assert np.allclose(by_reverse, by_forward) == (name == "sum of w * reshape(a, 4)")
PYTHON
