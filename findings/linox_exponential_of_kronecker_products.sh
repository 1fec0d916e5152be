#!/usr/bin/env bash
# linox 0.0.3: the exponential of a Kronecker product is given as the Kronecker product of the exponentials, which is another matrix.
#
# linox computes with matrices that are only described, such as the Kronecker product of two matrices A and B. lexp(K) is documented to be
# the matrix exponential of K, and lexp(K, v) its product with the vector v. One would expect both to belong to the same matrix. lexp(K, v)
# is right. lexp(K) is the Kronecker product of exp(A) and exp(B), as its docstring says. This is the exponential of the Kronecker sum of A
# and B, and not of their Kronecker product: for A = diag(1, 0) and B = diag(1, 2), K has the diagonal 1, 2, 0, 0, and exp(K) must have
# the diagonal e, e**2, 1, 1. Nothing warns of it.
#
# A way around it: the exponential of a Matrix made from K.todense().
#
# Seen with linox 0.0.3 and jax 0.10.2, Python 3.11, for the vector of ones as v:
#   exponentials of the diagonal: [2.718, 7.389, 1.0, 1.0]
#   lexp(K, v):                   [2.718, 7.389, 1.0, 1.0]
#   diagonal of lexp(K):          [7.389, 20.086, 2.718, 7.389]
#   diagonal of lexp(dense K):    [2.718, 7.389, 1.0, 1.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q linox==0.0.3 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax.numpy as jnp
import linox
import numpy as np

a, b = np.diag([1.0, 0.0]), np.diag([1.0, 2.0])
product = linox.Kronecker(linox.Matrix(jnp.array(a)), linox.Matrix(jnp.array(b)))
dense = product.todense()
assert np.array_equal(dense, np.kron(a, b))


def text(array: np.ndarray) -> str:
    return str(np.round(np.asarray(array), 3).tolist())


expected = text(np.exp(np.diag(dense)))
of_vector = text(linox.lexp(product, jnp.ones(4)))
found = text(np.diag(linox.lexp(product).todense()))
of_dense = text(np.diag(linox.lexp(linox.Matrix(dense))))
print(f"exponentials of the diagonal: {expected}")
print(f"lexp(K, v):                   {of_vector}")
print(f"diagonal of lexp(K):          {found}")
print(f"diagonal of lexp(dense K):    {of_dense}")
assert expected == of_vector == of_dense == "[2.718, 7.389, 1.0, 1.0]"
assert found == "[7.389, 20.086, 2.718, 7.389]" != expected, "the behaviour has changed"
PYTHON
