#!/usr/bin/env bash
# pyttb 1.8.6: mttkrp of a Tucker tensor ignores the weights of the factors that it is given.
#
# T.mttkrp(K, n) multiplies an unfolded tensor by the Khatri-Rao product of the factors of K, a tensor in canonical form. Each column of the
# result belongs to one component of K, and is scaled by the weight of this component. One would expect the same from all classes of
# tensors. tensor, sptensor and ktensor do so. ttensor, a tensor in Tucker form, takes the factor matrices and drops the weights, although
# it holds the same numbers. So a sumtensor, whose product is the sum of the products of its parts, scales some parts and not others.
# Nothing warns of it.
#
# A way around it: T.mttkrp(K.factor_matrices, n) * K.weights.
#
# Seen with pyttb 1.8.6, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the weights 10 and 100, in the first row of the result:
#   tensor:                [250, 9100], expected [250, 9100]
#   sptensor:              [250, 9100], expected [250, 9100]
#   ktensor:               [250, 9100], expected [250, 9100]
#   ttensor:               [25, 91], expected [250, 9100]
#   tensor + ttensor:      [275, 9191], expected [500, 18200]
#   ttensor, by matrices:  [25, 91], expected [25, 91]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pyttb==1.8.6 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pyttb

vectors = [np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]), np.array([[4.0], [1.0]])]
canonical = pyttb.ktensor(vectors)
dense = canonical.full()
tucker = pyttb.ttensor(pyttb.tensor(np.ones((1, 1, 1))), vectors)
assert np.array_equal(tucker.full().data, dense.data)
assert np.array_equal(dense.data, np.einsum("ia,ja,ka->ijk", *vectors))

matrices = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 1.0], [1.0, 4.0]]), np.array([[1.0, 1.0], [1.0, 3.0]])]
weights = np.array([10.0, 100.0])
factors = pyttb.ktensor(matrices, weights)
unweighted = np.einsum("ijk,jr,kr->ir", dense.data, matrices[1], matrices[2])
cases = (
    ("tensor", dense, factors, unweighted * weights, True),
    ("sptensor", dense.to_sptensor(), factors, unweighted * weights, True),
    ("ktensor", canonical, factors, unweighted * weights, True),
    ("ttensor", tucker, factors, unweighted * weights, False),
    ("tensor + ttensor", pyttb.sumtensor([dense, tucker]), factors, 2 * unweighted * weights, False),
    ("ttensor, by matrices", tucker, matrices, unweighted, True),
)
for name, tensor, by, expected, right in cases:
    found = tensor.mttkrp(by, 0)
    first, first_expected = (rows[0].astype(int).tolist() for rows in (found, expected))
    print(f"{name + ':':22} {first}, expected {first_expected}")
    assert np.array_equal(found, expected) == right, "the behaviour has changed"
assert np.array_equal(tucker.mttkrp(factors, 0), unweighted), "the behaviour has changed"
PYTHON
