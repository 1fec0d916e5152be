#!/usr/bin/env bash
# autograd 1.9.1: the gradient of the norms of a stack of matrices is right for axis=(1, 2), and wrong for axis=(-2, -1).
#
# np.linalg.norm(stack, axis=(-2, -1)) gives the norm of each matrix of a stack. In three dimensions, the axes -2 and -1 are the axes 1
# and 2, and the norms are the same, so one would expect the same gradient. But for negative axes, autograd inserts the new axes of the
# incoming gradient at the wrong places. If a stack has as many matrices as a matrix has rows, the shapes fit, and row i of every matrix
# gets the factor of matrix i. Nothing warns of it. For other stacks, there is an error. The nuclear norm has the same problem. A second
# one is np.diag of a rectangle: its gradient is a square.
#
# A way around it: axis=(1, 2), and np.diagonal.
#
# Seen with autograd 1.9.1 and numpy 2.4.6, Python 3.11, for the stack [diag(3, 4), diag(6, 8)]. The norms have the weights 1 and 100, and
# differences are central differences of the function:
#   fro, axes (1, 2):   differences [[[0.6, 0], [0, 0.8]], [[60, 0], [0, 80]]], autograd [[[0.6, 0], [0, 0.8]], [[60, 0], [0, 80]]]
#   fro, axes (-2, -1): differences [[[0.6, 0], [0, 0.8]], [[60, 0], [0, 80]]], autograd [[[0.6, 0], [0, 40]], [[1.2, 0], [0, 80]]]
#   nuc, axes (1, 2):   differences [[[1, 0], [0, 1]], [[100, 0], [0, 100]]], autograd [[[1, 0], [0, 1]], [[100, 0], [0, 100]]]
#   nuc, axes (-2, -1): differences [[[1, 0], [0, 1]], [[100, 0], [0, 100]]], autograd [[[1, 0], [0, 100]], [[1, 0], [0, 100]]]
#   diag of 2x3:        differences [[1, 0, 0], [0, 1, 0]], autograd [[1, 0], [0, 1]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q autograd==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from collections.abc import Callable

import autograd
import autograd.numpy as anp
import numpy as np

stack = np.array([np.diag([3.0, 4.0]), np.diag([6.0, 8.0])])
rectangle = np.arange(6.0).reshape(2, 3)
weights = np.array([1.0, 100.0])


def differences(f: Callable, x: np.ndarray) -> np.ndarray:
    steps = 1e-4 * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([(f(x + step) - f(x - step)) / 2e-4 for step in steps]).reshape(x.shape)


def norms(order: str, axes: tuple[int, int]) -> Callable:
    return lambda x: anp.sum(weights * anp.linalg.norm(x, order, axis=axes))


def text(array: np.ndarray) -> str:
    return str(np.round(array, 4).tolist()).replace(".0", "")


cases = (
    ("fro, axes (1, 2)", norms("fro", (1, 2)), stack, "[[[0.6, 0], [0, 0.8]], [[60, 0], [0, 80]]]"),
    ("fro, axes (-2, -1)", norms("fro", (-2, -1)), stack, "[[[0.6, 0], [0, 40]], [[1.2, 0], [0, 80]]]"),
    ("nuc, axes (1, 2)", norms("nuc", (1, 2)), stack, "[[[1, 0], [0, 1]], [[100, 0], [0, 100]]]"),
    ("nuc, axes (-2, -1)", norms("nuc", (-2, -1)), stack, "[[[1, 0], [0, 100]], [[1, 0], [0, 100]]]"),
    ("diag of 2x3", lambda x: anp.sum(anp.diag(x)), rectangle, "[[1, 0], [0, 1]]"),
)
for name, f, x, seen in cases:
    expected, found = text(differences(f, x)), text(autograd.grad(f)(x))
    print(f"{name + ':':19} differences {expected}, autograd {found}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == name.endswith("(1, 2)")
PYTHON
