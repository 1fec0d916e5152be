#!/usr/bin/env bash
# scipy 1.17.1: an integer matrix in the LIL or DOK format, divided by 2, is rounded towards zero, and divided by 2.0 it is not.
#
# scipy.sparse has seven formats for the same matrices. In Python 3, the operator / gives fractions, and so it does for numpy's
# arrays and for five of the formats. One would expect the other two to agree. LIL and DOK, in which one builds a matrix element by
# element, choose the type of the result as for a product: an integer divided by an integer remains an integer. The new matrix still
# holds the fractions, but it is labelled as integers, and they are cut off when it is converted or added up. A DOK matrix shows
# both: its element is 0.5, and the same element after toarray() is 0. Nothing warns of it. The /= of LIL and DOK has the same effect.
#
# A way around it: divide by 2.0, or convert to CSR first.
#
# Seen with scipy 1.17.1 and numpy 2.4.6, Python 3.11, for the rows [1, 2] and [0, 3], and the same for the *_matrix classes:
#   csr_array / 2:    [[0.5, 1.0], [0.0, 1.5]], sum 3.0, element [0, 0] is 0.5
#   lil_array / 2:    [[0, 1], [0, 1]], sum 2, element [0, 0] is 0
#   dok_array / 2:    [[0, 1], [0, 1]], sum 2, element [0, 0] is 0.5
#   lil_array / 2.0:  [[0.5, 1.0], [0.0, 1.5]], sum 3.0, element [0, 0] is 0.5
#   dok_array / 2.0:  [[0.5, 1.0], [0.0, 1.5]], sum 3.0, element [0, 0] is 0.5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from scipy import sparse

a = np.array([[1, 2], [0, 3]])


def halves(name: str, divisor: int | float) -> tuple[list, int | float, int | float]:
    half = getattr(sparse, name)(a) / divisor
    return half.toarray().tolist(), half.sum().item(), half[0, 0].item()


right = (a / 2).tolist(), 3, 0.5
for name, divisor in (("csr", 2), ("lil", 2), ("dok", 2), ("lil", 2.0), ("dok", 2.0)):
    matrix, total, element = halves(f"{name}_array", divisor)
    print(f"{name}_array / {divisor}: {matrix}, sum {total}, element [0, 0] is {element}")
for name in ("csr", "csc", "coo", "bsr", "dia"):
    assert np.array_equal((getattr(sparse, f"{name}_array")(a) / 2).toarray(), a / 2), name
for kind in ("array", "matrix"):
    assert halves(f"lil_{kind}", 2) == ([[0, 1], [0, 1]], 2, 0), "the behaviour has changed"
    assert halves(f"dok_{kind}", 2) == ([[0, 1], [0, 1]], 2, 0.5), "the behaviour has changed"
    assert halves(f"lil_{kind}", 2.0) == halves(f"dok_{kind}", 2.0) == right
PYTHON
