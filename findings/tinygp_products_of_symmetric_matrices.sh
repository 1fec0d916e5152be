#!/usr/bin/env bash
# tinygp 0.3.1: the product of two symmetric matrices is given as a symmetric matrix, and its upper triangle is wrong.
#
# tinygp has a class for each kind of quasiseparable matrix, such as SymmQSM for symmetric and DiagQSM for diagonal ones, and a @ b is the
# product of two of them. One would expect (a @ b).to_dense() to be a.to_dense() @ b.to_dense(). The product of two symmetric matrices is
# symmetric only if their order does not matter, but the class of the result is SymmQSM for all. Its lower triangle is right, and the upper
# one is the mirror image of it. It is the same for a symmetric and a diagonal matrix. Nothing warns of it. If one of them is a SquareQSM
# with the same elements, the product is right.
#
# A way around it: SquareQSM(diag=a.diag, lower=a.lower, upper=a.lower.transpose()) for a symmetric a.
#
# Seen with tinygp 0.3.1 and jax 0.10.2, Python 3.11, for A = 4 1 1, 1 5 2, 1 2 6 and B = 2 1 3, 1 1 3, 3 3 3 and D = diag(1, 10, 100):
#   A @ B:           [[12, 13, 22], [13, 12, 21], [22, 21, 27]], expected [[12, 8, 18], [13, 12, 24], [22, 21, 27]]
#   D @ A:           [[4, 10, 100], [10, 50, 200], [100, 200, 600]], expected [[4, 1, 1], [10, 50, 20], [100, 200, 600]]
#   A @ D:           [[4, 1, 1], [1, 50, 20], [1, 20, 600]], expected [[4, 10, 100], [1, 50, 200], [1, 20, 600]]
#   A as square @ B: [[12, 8, 18], [13, 12, 24], [22, 21, 27]], expected [[12, 8, 18], [13, 12, 24], [22, 21, 27]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q tinygp==0.3.1 jax==0.10.2 jaxlib==0.10.2 equinox==0.13.8 \
    numpy==2.4.6 scipy==1.17.1
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax.numpy as jnp
import numpy as np
from tinygp.solvers.quasisep.core import DiagQSM, SquareQSM, StrictLowerTriQSM, SymmQSM


def symmetric(d: list[float], p: list[float], q: list[float]) -> SymmQSM:
    """The matrix with the diagonal d and the elements p[i] q[j] below it."""
    lower = StrictLowerTriQSM(p=jnp.array(p)[:, None], q=jnp.array(q)[:, None], a=jnp.ones((3, 1, 1)))
    return SymmQSM(diag=DiagQSM(d=jnp.array(d)), lower=lower)


def text(array: np.ndarray) -> str:
    return str(np.round(np.asarray(array)).astype(int).tolist())


a = symmetric([4.0, 5.0, 6.0], [0.0, 1.0, 1.0], [1.0, 2.0, 0.0])
b = symmetric([2.0, 1.0, 3.0], [0.0, 1.0, 3.0], [1.0, 1.0, 0.0])
square = SquareQSM(diag=a.diag, lower=a.lower, upper=a.lower.transpose())
d = DiagQSM(d=jnp.array([1.0, 10.0, 100.0]))
assert text(a.to_dense()) == text(square.to_dense()) == "[[4, 1, 1], [1, 5, 2], [1, 2, 6]]"
assert text(b.to_dense()) == "[[2, 1, 3], [1, 1, 3], [3, 3, 3]]"
cases = (
    ("A @ B", a, b, "[[12, 13, 22], [13, 12, 21], [22, 21, 27]]"),
    ("D @ A", d, a, "[[4, 10, 100], [10, 50, 200], [100, 200, 600]]"),
    ("A @ D", a, d, "[[4, 1, 1], [1, 50, 20], [1, 20, 600]]"),
    ("A as square @ B", square, b, "[[12, 8, 18], [13, 12, 24], [22, 21, 27]]"),
)
for name, left, right, seen in cases:
    found, expected = text((left @ right).to_dense()), text(left.to_dense() @ right.to_dense())
    print(f"{name + ':':16} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == ("square" in name)
PYTHON
