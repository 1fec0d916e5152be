#!/usr/bin/env bash
# ad 1.5.1: ad.linalg.solve gives the solution 0, 3 of a system whose solution is 1, 2, if its coefficients are integers.
#
# ad differentiates functions of numbers, and has linear algebra for such numbers and for plain ones. Its documentation of solve
# does not ask for floats. One would expect the solution, as numpy.linalg.solve gives it. But solve joins the matrix and the
# right-hand side into one array, which is of integers where both are, and eliminates in place. So the result of each step is truncated
# to an integer. Nothing warns of it. The inverse of the same matrix is right, because it is solved for an identity of floats.
#
# A way around it: solve(numpy.array(a, float), b).
#
# Seen with ad 1.5.1 and numpy 2.4.1, Python 3.11:
#   3 1, 1 2 by 5, 5: [0, 3], expected [1, 2]
#   2 1, 1 3 by 1, 2: [0, 0], expected [0.2, 0.6]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q ad==1.5.1 numpy==2.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from ad.linalg import inv, solve

for a, b, seen in (([[3, 1], [1, 2]], [5, 5], [0, 3]), ([[2, 1], [1, 3]], [1, 2], [0, 0])):
    found, expected = [float(v) for v in solve(a, b)], np.linalg.solve(a, b)
    rows = ", ".join(" ".join(map(str, row)) for row in a)
    text = ", ".join(f"{v:g}" for v in found)
    print(f"{rows} by {', '.join(map(str, b))}: [{text}], expected [{', '.join(f'{v:g}' for v in expected)}]")
    assert found == seen, "the behaviour has changed"
    assert np.allclose(solve(np.array(a, float), b), expected)
    assert np.allclose(inv(a) @ np.array(b), expected)
PYTHON
