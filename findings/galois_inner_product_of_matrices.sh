#!/usr/bin/env bash
# galois 0.4.11: np.inner of two matrices is right in GF(7) and wrong in GF(8).
#
# galois computes numpy's functions on arrays over a finite field. For two matrices, np.inner multiplies each row of the first
# by each row of the second, as A @ B.T does. One would expect that this does not depend on the field. Over the integers modulo
# a prime it is so. In an extension field, such as the GF(256) of error-correcting codes, each row meets only the row of the same
# number, so the result is a vector, the diagonal of the right one. A matrix of one row is paired with every row of the other,
# and the result loses a dimension.
#
# A way around it: A @ B.T.
#
# Seen with galois 0.4.11 and numpy 2.4.6, Python 3.11, for A = [[1, 2], [3, 4]] and B = [[5, 6], [0, 1]]:
#   GF(7), A @ B.T:             [[3, 2], [4, 4]]
#   GF(7), np.inner(A, B):      [[3, 2], [4, 4]]
#   GF(7), np.inner(A[:1], B):  [[3, 2]]
#   GF(8), A @ B.T:             [[2, 2], [1, 4]]
#   GF(8), np.inner(A, B):      [2, 4]
#   GF(8), np.inner(A[:1], B):  [2, 2]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q galois==0.4.11 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import galois
import numpy as np

for order in (7, 8):
    field = galois.GF(order)
    a, b = field([[1, 2], [3, 4]]), field([[5, 6], [0, 1]])
    products = [[int(np.sum(row * other)) for other in b] for row in a]
    found = [result.tolist() for result in (a @ b.T, np.inner(a, b), np.inner(a[:1], b))]
    for what, result in zip(("A @ B.T", "np.inner(A, B)", "np.inner(A[:1], B)"), found):
        print(f"GF({order}), {what}: {result}")
    wrong = [[products[0][0], products[1][1]], products[0]]
    expected = [products, products, products[:1]] if order == 7 else [products, *wrong]
    assert found == expected, "the behaviour has changed"
PYTHON
