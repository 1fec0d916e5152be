#!/usr/bin/env bash
# asdf 6.0.0: of a table with the columns a, b and c, the columns a and c are saved as other numbers.
#
# table[["a", "c"]] of a structured numpy array is a view of the table with gaps where the other columns are. One would expect asdf to save
# the values of the two columns. But the file describes a table without gaps, while the data have them. So the second column and all
# further rows are read from the wrong places. A C-like structure with padding, as np.dtype(..., align=True) makes it, has the same problem.
# It is the same for compressed files, and the array in memory is right. Nothing warns of it, neither on writing nor on reading.
#
# A way around it: numpy.lib.recfunctions.repack_fields(table[["a", "c"]]).
#
# Seen with asdf 6.0.0 and numpy 2.4.6, Python 3.11:
#   three columns:               saved [(1, 2.5, 7), (2, 3.5, 8)], read [(1, 2.5, 7), (2, 3.5, 8)]
#   columns a and c:             saved [(1, 7), (2, 8)], read [(1, 0), (1074003968, 7)]
#   columns a and c, compressed: saved [(1, 7), (2, 8)], read [(1, 0), (1074003968, 7)]
#   columns a and c, repacked:   saved [(1, 7), (2, 8)], read [(1, 7), (2, 8)]
#   padded structure:            saved [(1, 258), (2, 772)], read [(1, 512), (1, 2)]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q asdf==6.0.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from io import BytesIO

import asdf
import numpy as np
from numpy.lib.recfunctions import repack_fields


def read_back(array: np.ndarray, compression: str | None) -> np.ndarray:
    file = BytesIO()
    asdf.AsdfFile({"array": array}).write_to(file, all_array_compression=compression)
    file.seek(0)
    with asdf.open(file, lazy_load=False, memmap=False) as tree:
        return np.array(tree["array"])


table = np.array([(1, 2.5, 7), (2, 3.5, 8)], dtype=[("a", "<i4"), ("b", "<f8"), ("c", "<i4")])
padded = np.zeros(2, np.dtype([("small", "i1"), ("large", "<i2")], align=True))
padded["small"], padded["large"] = [1, 2], [258, 772]
columns = table[["a", "c"]]
cases = (
    ("three columns", table, None, table.tolist()),
    ("columns a and c", columns, None, [(1, 0), (1074003968, 7)]),
    ("columns a and c, compressed", columns, "zlib", [(1, 0), (1074003968, 7)]),
    ("columns a and c, repacked", repack_fields(columns), None, columns.tolist()),
    ("padded structure", padded, None, [(1, 512), (1, 2)]),
)
for name, array, compression, seen in cases:
    found = read_back(array, compression)
    print(f"{name + ':':28} saved {array.tolist()}, read {found.tolist()}")
    assert found.tolist() == seen, "the behaviour has changed"
    assert found.dtype.names == array.dtype.names and found.shape == array.shape
PYTHON
