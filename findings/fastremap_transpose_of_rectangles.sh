#!/usr/bin/env bash
# fastremap 1.21.0: the transpose of a matrix of two rows and three columns has two rows and three columns.
#
# fastremap works on arrays of labels in place. Its transpose is documented to transpose rectangular arrays in place if their memory is
# contiguous, to use np.transpose otherwise, and to return the transposed array. One would expect the values of np.transpose. They come
# for square matrices. For a rectangular matrix, the elements move to where they are in the transpose, but the shape stays. So the rows
# of the result are not those of any of the two matrices. Nothing warns of it. It is the same for slices, which are not contiguous,
# and for arrays of three dimensions.
#
# A way around it: fastremap.transpose(matrix).reshape(matrix.shape[::-1]), or np.ascontiguousarray(matrix.T).
#
# Seen with fastremap 1.21.0 and numpy 2.4.6, Python 3.11:
#   [[0, 1], [2, 3]]:                 [[0, 2], [1, 3]], numpy [[0, 2], [1, 3]]
#   [[0, 1, 2], [3, 4, 5]]:           [[0, 3, 1], [4, 2, 5]], numpy [[0, 3], [1, 4], [2, 5]]
#   [[0, 1, 2], [3, 4, 5]] as slices: [[0, 3, 1], [4, 2, 5]], numpy [[0, 3], [1, 4], [2, 5]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q fastremap==1.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import fastremap
import numpy as np

square = np.arange(4).reshape(2, 2)
rectangle = np.arange(6).reshape(2, 3)
slices = np.repeat(rectangle, 2, axis=1)[:, ::2]
cases = (
    ("", square, [[0, 2], [1, 3]]),
    ("", rectangle, [[0, 3, 1], [4, 2, 5]]),
    (" as slices", slices, [[0, 3, 1], [4, 2, 5]]),
)
for layout, matrix, seen in cases:
    title, by_numpy = f"{matrix.tolist()}{layout}:", np.ascontiguousarray(matrix.T)
    found = fastremap.transpose(matrix)
    print(f"{title:33} {found.tolist()}, numpy {by_numpy.tolist()}")
    assert found.tolist() == seen, "the behaviour has changed"
    assert np.array_equal(found.reshape(by_numpy.shape), by_numpy)
block = np.arange(24).reshape(2, 3, 4)
assert fastremap.transpose(block.copy()).shape == (2, 3, 4), "the behaviour has changed"
PYTHON
