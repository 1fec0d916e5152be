#!/usr/bin/env bash
# pylops 2.8.0: the matrix that todense gives for a NonStationaryConvolve1D is the transpose of the operator.
#
# A NonStationaryConvolve1D of pylops is a convolution whose filter varies from place to place, and op.todense() is the matrix of an
# operator. One would expect op.todense() @ x to be op @ x, as for other operators. For this one, todense is written by hand and puts the
# filters into rows, while op @ x adds up columns: element i of x is spread by filter i. So a matrix made to look at the operator, or to
# solve its equations with numpy, is the transpose. For symmetric filters that do not vary, both are the same. Nothing warns of it.
#
# A way around it: op.matmat(np.eye(n)).
#
# Seen with pylops 2.8.0 and numpy 2.4.6, Python 3.11, for the filters [0, 1, 10] and [0, 2, 20] at 1 and 2, and a vector of 4 elements:
#   op @ [1, 0, 0, 0]:           [1, 10, 0, 0]
#   op.todense() @ [1, 0, 0, 0]: [1, 0, 0, 0]
#   op.todense():                [[1, 10, 0, 0], [0, 1, 10, 0], [0, 0, 2, 20], [0, 0, 0, 2]]
#   op.matmat(np.eye(4)):        [[1, 0, 0, 0], [10, 1, 0, 0], [0, 10, 2, 0], [0, 0, 20, 2]]
#   expected:                    [[1, 0, 0, 0], [10, 1, 0, 0], [0, 10, 2, 0], [0, 0, 20, 2]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pylops==2.8.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from pylops.signalprocessing import Convolve1D, NonStationaryConvolve1D

filters = np.array([[0.0, 1, 10], [0, 2, 20]])
op = NonStationaryConvolve1D(4, filters, ih=(1, 2))
# Elements 0 and 1 are spread by the first filter, and elements 2 and 3 by the second one.
expected = np.zeros((4, 6))
for column, h in enumerate(filters[[0, 0, 1, 1]]):
    expected[column, column : column + 3] = h
expected = expected[:, 1:5].T

first = np.eye(4)[0]
dense, columns = op.todense(), op.matmat(np.eye(4))
for name, array in (
    ("op @ [1, 0, 0, 0]", op @ first),
    ("op.todense() @ [1, 0, 0, 0]", dense @ first),
    ("op.todense()", dense),
    ("op.matmat(np.eye(4))", columns),
    ("expected", expected),
):
    print(f"{name + ':':28} {array.astype(int).tolist()}")
assert np.array_equal(columns, expected) and np.array_equal(op @ first, expected @ first)
assert np.array_equal(dense, expected.T) and not np.array_equal(dense, expected), "the behaviour has changed"
fixed = Convolve1D(4, filters[0], offset=1)
assert np.array_equal(fixed.todense(), fixed.matmat(np.eye(4)))
PYTHON
