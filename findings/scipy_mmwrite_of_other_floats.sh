#!/usr/bin/env bash
# scipy 1.17.1: mmwrite saves an array of float16, or of float64 in big-endian order, as truncated integers.
#
# scipy.io.mmwrite writes a matrix as text in the Matrix Market format. If no field is given, it follows from the type of the array:
# real for floating point, integer for integers. One would expect real for every floating-point array, and so it was before the
# writer was rewritten in C++ (scipy 1.12). The new one knows float32, float64 and longdouble in the machine's byte order, and their
# complex types. All other arrays are declared integer and converted, so that 0.25 becomes 0 and -2.75 becomes -2. Nothing warns of it.
# Big-endian arrays come from files, for instance FITS or NetCDF. For complex ones, numpy warns that the imaginary part is lost.
#
# A way around it: mmwrite(..., field="real"), or array.astype(float) first.
#
# Seen with scipy 1.17.1 and numpy 2.4.6 on a little-endian machine, Python 3.11, for the rows [0.25, 1.5] and [-2.75, 3]:
#   float64 <f8:                  real, read again: [[0.25, 1.5], [-2.75, 3.0]]
#   float32 <f4:                  real, read again: [[0.25, 1.5], [-2.75, 3.0]]
#   float16 <f2:                  integer, read again: [[0, 1], [-2, 3]]
#   float64 >f8:                  integer, read again: [[0, 1], [-2, 3]]
#   float32 >f4:                  integer, read again: [[0, 1], [-2, 3]]
#   float64 >f8 and field="real": real, read again: [[0.25, 1.5], [-2.75, 3.0]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from io import BytesIO

import numpy as np
from scipy.io import mmread, mmwrite

rows = [[0.25, 1.5], [-2.75, 3.0]]
cases = (("<f8", None), ("<f4", None), ("<f2", None), (">f8", None), (">f4", None), (">f8", "real"))
for kind, field in cases:
    array = np.array(rows, dtype=kind)
    file = BytesIO()
    mmwrite(file, array, field=field)
    declared = file.getvalue().split(b"\n")[0].split()[3].decode()
    file.seek(0)
    found = mmread(file).tolist()
    name = f"{array.dtype.name} {kind}" + (f' and field="{field}"' if field else "")
    print(f"{name}: {declared}, read again: {found}")
    assert array.tolist() == rows
    if kind in ("<f8", "<f4") or field:
        assert (declared, found) == ("real", rows)
    else:
        assert (declared, found) == ("integer", [[0, 1], [-2, 3]]), "the behaviour has changed"
PYTHON
