#!/usr/bin/env bash
# sparse 0.19.3: the product of nine elements that are all 2 is 0, for an array of uint8.
#
# An array of sparse stores the elements that differ from its fill value, which can be any number. Its prod has the type of numpy's prod,
# int64 or uint64 for small integers. One would expect numpy's value, too. But for the elements that are not stored, the fill value is
# raised to the power of their number in the type of the array, where it wraps around. The stored elements are multiplied in 64 bits, and
# sum adds up all elements in 64 bits. prod(dtype="int64") does not change it, and GCXS arrays have the same problem. Nothing warns of it.
#
# A way around it: array.astype("int64").prod().
#
# Seen with sparse 0.19.3 and numpy 2.4.6, Python 3.11:
#   9 times 2 as uint8:   stored 512, as the fill value 0, numpy 512
#   5 times -3 as int8:   stored -243, as the fill value 13, numpy -243
#   15 times 2 as int16:  stored 32768, as the fill value -32768, numpy 32768
#   40 times 2 as int32:  stored 1099511627776, as the fill value 0, numpy 1099511627776
#   40 times 2 as int64:  stored 1099511627776, as the fill value 1099511627776, numpy 1099511627776
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q sparse==0.19.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import sparse

cases = (
    (9, 2, "uint8", 0),
    (5, -3, "int8", 13),
    (15, 2, "int16", -(2**15)),
    (40, 2, "int32", 0),
    (40, 2, "int64", 2**40),
)
for count, number, dtype, seen in cases:
    dense = np.full(count, number, dtype)
    stored = sparse.COO.from_numpy(dense)
    filled = sparse.full((count,), number, dtype=dtype)
    assert stored.nnz == count and filled.nnz == 0 and np.array_equal(filled.todense(), dense)
    by_stored, by_filled, by_numpy = (array.prod() for array in (stored, filled, dense))
    title = f"{count} times {number} as {dtype}:"
    print(f"{title:21} stored {by_stored[()]}, as the fill value {by_filled[()]}, numpy {by_numpy}")
    assert by_filled[()] == seen and by_filled.dtype == by_numpy.dtype, "the behaviour has changed"
    assert by_stored[()] == by_numpy == number**count
    assert filled.prod(dtype="int64")[()] == sparse.GCXS(filled).prod()[()] == seen, "the behaviour has changed"
    assert filled.astype("int64").prod()[()] == by_numpy and filled.sum()[()] == dense.sum()
PYTHON
