#!/usr/bin/env bash
# fast_matrix_market 1.7.6: read_array adds up the entries 1 and 2 of one element to 4.
#
# A sparse matrix in a Matrix Market file may have several entries for one element. They are added up, as usual in finite elements.
# mmread of this package and of scipy do so. read_array reads the same files into a dense array, and one would expect the same matrix.
# Instead, each further entry also adds the sum so far once more: 1 and 2 become 1 + (1 + 2) = 4, and four entries 2, 3, 5 and 7 become
# 45. Elements with one entry are right. The result does not depend on the number of threads.
#
# A way around it: fast_matrix_market.mmread(file).toarray().
#
# Seen with fast_matrix_market 1.7.6, scipy 1.17.1 and numpy 2.4.6, Python 3.11. Each matrix also has one entry 9 elsewhere:
#   entries [1]:          mmread 1.0, scipy 1.0, read_array 1.0
#   entries [1, 2]:       mmread 3.0, scipy 3.0, read_array 4.0
#   entries [5, 7]:       mmread 12.0, scipy 12.0, read_array 17.0
#   entries [2, 3, 5, 7]: mmread 17.0, scipy 17.0, read_array 45.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q fast_matrix_market==1.7.6 scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from io import BytesIO

import fast_matrix_market
import numpy as np
import scipy.io


def file(entries: list[int]) -> BytesIO:
    lines = [f"1 1 {entry}" for entry in entries]
    header = f"%%MatrixMarket matrix coordinate real general\n2 2 {len(entries) + 1}\n"
    return BytesIO((header + "\n".join([*lines, "2 2 9"]) + "\n").encode())


for entries, seen in (([1], 1), ([1, 2], 4), ([5, 7], 17), ([2, 3, 5, 7], 45)):
    sparse, by_scipy = fast_matrix_market.mmread(file(entries)).toarray(), scipy.io.mmread(file(entries)).toarray()
    dense = fast_matrix_market.read_array(file(entries))
    print(f"entries {entries}: mmread {sparse[0, 0]}, scipy {by_scipy[0, 0]}, read_array {dense[0, 0]}")
    assert np.array_equal(sparse, np.diag([sum(entries), 9])) and np.array_equal(by_scipy, sparse)
    assert np.array_equal(dense, np.diag([seen, 9])), "the behaviour has changed"
    assert np.array_equal(fast_matrix_market.read_array(file(entries), parallelism=1), dense)
PYTHON
