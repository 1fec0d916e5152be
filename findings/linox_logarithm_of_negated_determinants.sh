#!/usr/bin/env bash
# linox 0.0.3: the sign of the determinant of -A is that of A, and the logarithm of its absolute value is NaN.
#
# slogdet of linox is documented to give the sign of the determinant of a matrix and the logarithm of the determinant, as
# numpy.linalg.slogdet does, which takes the absolute value first. One would expect so for -A too: the determinant of -diag(1, 2, 3) is -6,
# so the sign is -1 and the logarithm log(6) = 1.792. But for a matrix multiplied by a negative number, the sign is left as it was, and the
# logarithm of the negative number is added. ldet(-A) is right. Nothing warns of it.
#
# A way around it: slogdet of a Matrix made from (-A).todense().
#
# Seen with linox 0.0.3 and jax 0.10.2, Python 3.11, for diagonal matrices A:
#   A = diag(1, 2, 3), -A:        sign 1, logarithm nan, expected -1, 1.792; ldet -6
#   A = diag(-1, 2, 3), -A:       sign -1, logarithm nan, expected 1, 1.792; ldet 6
#   A = diag(1, 2, 3), dense -A:  sign -1, logarithm 1.792, expected -1, 1.792; ldet -6
#   A = diag(1, 2, 3), A:         sign 1, logarithm 1.792, expected 1, 1.792; ldet 6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q linox==0.0.3 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax.numpy as jnp
import linox
import numpy as np

a, b = ([1.0, 2.0, 3.0], [-1.0, 2.0, 3.0])
cases = (
    ("A = diag(1, 2, 3), -A", -linox.Matrix(jnp.diag(jnp.array(a))), "1, logarithm nan"),
    ("A = diag(-1, 2, 3), -A", -linox.Matrix(jnp.diag(jnp.array(b))), "-1, logarithm nan"),
    ("A = diag(1, 2, 3), dense -A", linox.Matrix(-jnp.diag(jnp.array(a))), "-1, logarithm 1.792"),
    ("A = diag(1, 2, 3), A", linox.Matrix(jnp.diag(jnp.array(a))), "1, logarithm 1.792"),
)
for name, matrix, seen in cases:
    sign, logarithm = linox.slogdet(matrix)
    right = np.linalg.slogdet(np.asarray(matrix.todense()))
    found = f"{float(sign):g}, logarithm {float(logarithm):.3f}"
    determinant = round(float(linox.ldet(matrix)), 9)
    print(f"{name + ':':29} sign {found}, expected {right[0]:g}, {right[1]:.3f}; ldet {determinant:g}")
    assert found == seen, "the behaviour has changed"
    assert np.isclose(determinant, right[0] * np.exp(right[1]))
    assert (found == f"{right[0]:g}, logarithm {right[1]:.3f}") == (not name.endswith(" -A") or "dense" in name)
PYTHON
