#!/usr/bin/env bash
# warp-lang 1.19.0: array_sum and array_inner of a strided view read the wrong elements.
#
# A slice of a warp array is a view with strides, and kernels index it like any other array. One would expect that warp.utils.array_sum
# and array_inner add up the elements of the view, or refuse it. With an axis they do add them up. Without one they ignore the strides:
# they start at the first element of the view, and go on with those that follow in memory. So the sum of the column [1, 4, 7] below is
# 1 + 2 + 3, and the inner product of a matrix with its transpose is that of the matrix with itself. There is no warning.
#
# A way around it: array.contiguous().
#
# Seen with warp-lang 1.19.0 and numpy 2.4.6 on a CPU, Python 3.11, for the rows [0, 1, 2], [3, 4, 5] and [6, 7, 8]:
#   second column:                 [1.0, 4.0, 7.0]
#   its sum:                       6.0, expected 12.0
#   its sum with axis=0:           12.0, expected 12.0
#   its inner product with itself: 14.0, expected 66.0
#   matrix and transpose:          204.0, expected 180.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q warp-lang==1.19.0 numpy==2.4.6
WARP_CACHE_PATH="$folder/cache" "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import warp as wp
from warp.utils import array_inner, array_sum

wp.config.log_level = wp.LOG_ERROR
rows = np.arange(9, dtype=np.float32).reshape(3, 3)
matrix = wp.array(rows, device="cpu")
column, transpose = matrix[:, 1], matrix.transpose((1, 0))
print("second column:", column.numpy().tolist())
assert np.array_equal(column.numpy(), rows[:, 1]) and np.array_equal(transpose.numpy(), rows.T)
found = {
    "its sum": (array_sum(column), rows[:, 1].sum()),
    "its sum with axis=0": (array_sum(column, axis=0).numpy()[0], rows[:, 1].sum()),
    "its inner product with itself": (array_inner(column, column), rows[:, 1] @ rows[:, 1]),
    "matrix and transpose": (array_inner(matrix, transpose), (rows * rows.T).sum()),
}
for what, (result, expected) in found.items():
    print(f"{what}: {result}, expected {expected}")
assert array_sum(column.contiguous()) == rows[:, 1].sum()
results = [float(result) for result, _ in found.values()]
assert results == [6, 12, 14, 204], "the behaviour has changed"
PYTHON
