#!/usr/bin/env bash
# pyttb 1.8.6: of a sparse matrix with two elements that are 1, S == 1 counts four.
#
# S == 1 and S != 1 are sparse tensors with the value 1 where the condition holds, as the documentation shows. One would expect their sums
# to count the elements. But S == 1 gets as many values as S has, for fewer subscripts, and S != 1 gets as many values as S has zeros, for
# more subscripts. So collapse() and norm() of the results are wrong, and full() raises an error. The constructor does not compare the
# lengths, and nothing warns of it. Comparisons with 0, and S > 1, are right, and so are those of tensor, the dense class.
#
# A way around it: S.full() == 1.
#
# Seen with pyttb 1.8.6, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the matrix [[1, 2, 0], [0, 1, 3]]:
#   S == 1: nnz 2, sum 4, square of the norm 4, tensor 2
#   S != 1: nnz 4, sum 2, square of the norm 2, tensor 4
#   S == 0: nnz 2, sum 2, square of the norm 2, tensor 2
#   S != 0: nnz 4, sum 4, square of the norm 4, tensor 4
#   S > 1:  nnz 2, sum 2, square of the norm 2, tensor 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pyttb==1.8.6 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import operator

import numpy as np
import pyttb

matrix = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]])
dense = pyttb.tensor(matrix)
sparse = dense.to_sptensor()
cases = (
    ("S == 1", operator.eq, 1, 4),
    ("S != 1", operator.ne, 1, 2),
    ("S == 0", operator.eq, 0, 2),
    ("S != 0", operator.ne, 0, 4),
    ("S > 1", operator.gt, 1, 2),
)
for name, compare, number, seen in cases:
    result, by_dense, expected = (compare(x, number) for x in (sparse, dense, matrix))
    found, square = int(result.collapse()), round(result.norm() ** 2)
    print(f"{name + ':':7} nnz {result.nnz}, sum {found}, square of the norm {square}, tensor {by_dense.data.sum()}")
    assert result.nnz == expected.sum() == by_dense.data.sum()
    assert found == square == seen, "the behaviour has changed"
    try:
        result.full()
        right = True
    except ValueError:
        right = False
    assert right == (found == expected.sum()) == (number == 0 or compare is operator.gt), "the behaviour has changed"
PYTHON
