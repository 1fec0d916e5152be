#!/usr/bin/env bash
# pyttb 1.8.6: of a sparse tensor, the leading vectors that nvecs gives are not eigenvectors, and come in the wrong order.
#
# T.nvecs(n, r) is documented as the r leading eigenvectors of X * X', where X has the tensor T unfolded along the dimension n. For a
# matrix and n = 0, these are the left singular vectors. One would expect the same vectors, up to signs, from a tensor and from an sptensor
# with the same elements. If r is at least the size of the dimension less 1, nvecs of an sptensor computes all eigenvectors as the columns
# of a matrix. Then it sorts the rows of the matrix by the eigenvalues instead of the columns. So the elements of each vector are
# permuted, and the vectors keep the order in which they were computed. Nothing warns of it. Smaller r, and tensor, are right.
#
# A way around it: S.full().nvecs(n, r).
#
# Seen with pyttb 1.8.6, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the matrix [[1, 2, 0], [0, 3, 4], [5, 0, 6]] and n = 0, without
# signs:
#   tensor, r = 1:   [0.104, 0.45, 0.887], expected [0.104, 0.45, 0.887]
#   sptensor, r = 1: [0.104, 0.45, 0.887], expected [0.104, 0.45, 0.887]
#   tensor, r = 2:   [0.104, 0.45, 0.887] [0.302, 0.836, 0.459], expected [0.104, 0.45, 0.887] [0.302, 0.836, 0.459]
#   sptensor, r = 2: [0.104, 0.887, 0.45] [0.948, 0.049, 0.316], expected [0.104, 0.45, 0.887] [0.302, 0.836, 0.459]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pyttb==1.8.6 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pyttb

matrix = np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0], [5.0, 0.0, 6.0]])
dense = pyttb.tensor(matrix)
sparse = dense.to_sptensor()
assert np.array_equal(sparse.full().data, matrix)
left = np.abs(np.linalg.svd(matrix)[0]).round(3)
for r in (1, 2):
    for name, tensor in (("tensor", dense), ("sptensor", sparse)):
        found = np.abs(tensor.nvecs(0, r)).round(3)
        title = f"{name}, r = {r}:"
        print(f"{title:16}", *found.T.tolist(), end=", expected ")
        print(*left[:, :r].T.tolist())
        assert np.allclose(found, left[:, :r], atol=2e-3) == (tensor is dense or r == 1), "the behaviour has changed"

# The second row of the found matrix is the third row of the matrix of all eigenvectors.
eigenvectors = np.abs(np.linalg.eigh(matrix @ matrix.T)[1])
assert np.allclose(np.sort(found[1]), np.sort(eigenvectors[2])[[0, 2]], atol=2e-3), "the behaviour has changed"
PYTHON
