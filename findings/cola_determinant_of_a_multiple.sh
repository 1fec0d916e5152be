#!/usr/bin/env bash
# cola-ml 0.0.7: for a matrix A of size 3x3, the logarithm of the determinant of 2 A is log(2) more than that of A, instead of 3 log(2).
#
# cola computes with matrices that are only described, such as the multiple of another one. cola.linalg.logdet and slogdet are documented
# to give the logarithm of the determinant, and slogdet the sign too. One would expect the values of numpy.linalg.slogdet. For 2 A, A / 2
# and -A, each of the numbers 2, 1/2 and -1 is counted once, instead of once for each row. So the determinant of -A has the wrong sign if
# the number of rows is even. Nothing warns of it. It is the same with algorithms that are named explicitly. For a dense matrix with the
# same elements, all is right.
#
# A way around it: cola.ops.Dense((2 * A).to_dense()).
#
# Seen with cola-ml 0.0.7 and jax 0.10.2, Python 3.11, for matrices of two and three rows with the determinants 5 and 18:
#   2 rows, A:     sign 1, log 1.609, expected 1, 1.609
#   2 rows, 2 * A: sign 1, log 2.303, expected 1, 2.996
#   2 rows, A / 2: sign 1, log 0.916, expected 1, 0.223
#   2 rows, -A:    sign -1, log 1.609, expected 1, 1.609
#   3 rows, A:     sign 1, log 2.890, expected 1, 2.890
#   3 rows, 2 * A: sign 1, log 3.584, expected 1, 4.970
#   3 rows, A / 2: sign 1, log 2.197, expected 1, 0.811
#   3 rows, -A:    sign -1, log 2.890, expected -1, 2.890
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q cola-ml==0.0.7 cola-plum-dispatch==0.1.4 jax==0.10.2 jaxlib==0.10.2 \
    numpy==2.4.6 scipy==1.17.1 beartype==0.23.1
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import cola
import jax.numpy as jnp
import numpy as np

matrices = (
    (2, [[2.0, 1.0], [1.0, 3.0]], ("1, log 1.609", "1, log 2.303", "1, log 0.916", "-1, log 1.609")),
    (
        3,
        [[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]],
        ("1, log 2.890", "1, log 3.584", "1, log 2.197", "-1, log 2.890"),
    ),
)


def text(sign: float, logarithm: float) -> str:
    return f"{float(sign):g}, log {float(logarithm):.3f}"


for rows, elements, seen in matrices:
    a = cola.ops.Dense(jnp.array(elements))
    for name, matrix, value in zip(("A", "2 * A", "A / 2", "-A"), (a, 2 * a, a / 2, -a), seen, strict=True):
        dense = np.asarray(matrix.to_dense())
        found, expected = text(*cola.linalg.slogdet(matrix)), text(*np.linalg.slogdet(dense))
        print(f"{rows} rows, {name + ':':6} sign {found}, expected {expected.replace('log ', '')}")
        assert found == value, "the behaviour has changed"
        assert text(*cola.linalg.slogdet(cola.ops.Dense(jnp.array(dense)))) == expected
        assert (found == expected) == (name == "A" or (name == "-A" and rows == 3))
        assert np.isclose(cola.linalg.logdet(matrix), cola.linalg.slogdet(matrix)[1])
PYTHON
