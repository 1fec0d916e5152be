#!/usr/bin/env bash
# casadi 3.8.2: the running sums of the diagonal matrix diag(1, 2, 3) have two empty columns.
#
# casadi has three types of matrices with the same functions: numbers (DM), scalar expressions (SX) and matrix expressions (MX). All can be
# sparse. cumsum adds up the rows of a matrix from top to bottom, and one would expect the same numbers from all three types. For DM and SX,
# they are the same. For MX, every sum gets the pattern of the first row: where the first row has a structural zero, the whole column is
# zero, whatever is below. Along the other axis, rows are lost in the same way. Nothing warns of it.
#
# A way around it: ca.cumsum(ca.densify(x)).
#
# Seen with casadi 3.8.2 and numpy 2.4.6, Python 3.11:
#   diag(1, 2, 3), axis 0: SX [[1, 0, 0], [1, 2, 0], [1, 2, 3]], MX [[1, 0, 0], [1, 0, 0], [1, 0, 0]]
#   diag(1, 2, 3), axis 1: SX [[1, 1, 1], [0, 2, 2], [0, 0, 3]], MX [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
#   [[1, 2], [0, 3]], axis 0: SX [[1, 2], [1, 5]], MX [[1, 2], [1, 5]]
#   [[1, 2], [0, 3]], axis 1: SX [[1, 3], [0, 3]], MX [[1, 3], [0, 0]]
#   [[1, 0], [2, 3]], axis 0: SX [[1, 0], [3, 3]], MX [[1, 0], [3, 0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q casadi==3.8.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import casadi as ca
import numpy as np

diagonal, upper, lower = np.diag([1.0, 2, 3]), np.array([[1.0, 2], [0, 3]]), np.array([[1.0, 0], [2, 3]])
cases = (
    ("diag(1, 2, 3)", diagonal, 0, [[1, 0, 0], [1, 0, 0], [1, 0, 0]]),
    ("diag(1, 2, 3)", diagonal, 1, [[1, 1, 1], [0, 0, 0], [0, 0, 0]]),
    ("[[1, 2], [0, 3]]", upper, 0, [[1, 2], [1, 5]]),
    ("[[1, 2], [0, 3]]", upper, 1, [[1, 3], [0, 0]]),
    ("[[1, 0], [2, 3]]", lower, 0, [[1, 0], [3, 0]]),
)


def running_sums(kind: type, x: ca.DM, axis: int, dense: bool = False) -> list:
    argument = kind.sym("x", x.sparsity())
    sums = ca.cumsum(ca.densify(argument) if dense else argument, axis)
    return ca.Function("f", [argument], [sums])(x).full().astype(int).tolist()


for name, array, axis, seen in cases:
    x = ca.sparsify(ca.DM(array))
    expected = np.cumsum(array, axis).astype(int).tolist()
    by_scalars, by_matrices = running_sums(ca.SX, x, axis), running_sums(ca.MX, x, axis)
    print(f"{name}, axis {axis}: SX {by_scalars}, MX {by_matrices}")
    assert ca.cumsum(x, axis).full().tolist() == by_scalars == running_sums(ca.MX, x, axis, dense=True) == expected
    assert by_matrices == seen, "the behaviour has changed"
PYTHON
