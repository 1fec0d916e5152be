#!/usr/bin/env bash
# dask 2026.8.0: da.pad accepts reflect_type="odd", and it has no effect.
#
# With mode="reflect" or "symmetric" and reflect_type="odd", np.pad mirrors an array at the point at its edge, so that a straight line goes
# on. The documentation of da.pad is a copy of numpy's, and da.pad refuses keywords that do not belong to a mode. One would expect the
# result of numpy, or an error. The code does have an error for odd reflections, but it looks for a keyword called reflect, which is refused
# before. So the result is that of "even". Misspelled types have no effect in the same way. Nothing warns of it.
#
# A way around it: 2 * edge - even, where edge is the array padded with mode="edge", for padding in one dimension.
#
# Seen with dask 2026.8.0 and numpy 2.4.6, Python 3.11, for the line 1, 2, 3, padded by 2:
#   reflect, even:   dask [3, 2, 1, 2, 3, 2, 1], numpy [3, 2, 1, 2, 3, 2, 1]
#   reflect, odd:    dask [3, 2, 1, 2, 3, 2, 1], numpy [-1, 0, 1, 2, 3, 4, 5]
#   symmetric, even: dask [2, 1, 1, 2, 3, 3, 2], numpy [2, 1, 1, 2, 3, 3, 2]
#   symmetric, odd:  dask [2, 1, 1, 2, 3, 3, 2], numpy [0, 1, 1, 2, 3, 3, 4]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "dask[array]==2026.8.0" numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import dask.array as da
import numpy as np

line = np.array([1, 2, 3])
lazy = da.from_array(line, chunks=2)
for mode, even in (("reflect", [3, 2, 1, 2, 3, 2, 1]), ("symmetric", [2, 1, 1, 2, 3, 3, 2])):
    for kind in ("even", "odd"):
        found = da.pad(lazy, 2, mode=mode, reflect_type=kind).compute().tolist()
        expected = np.pad(line, 2, mode=mode, reflect_type=kind).tolist()
        print(f"{f'{mode}, {kind}:':16} dask {found}, numpy {expected}")
        assert found == even, "the behaviour has changed"
        assert (found == expected) == (kind == "even")
    around = 2 * da.pad(lazy, 2, mode="edge") - da.pad(lazy, 2, mode=mode)
    assert around.compute().tolist() == expected
    assert da.pad(lazy, 2, mode=mode, reflect_type="misspelled").compute().tolist() == even
    try:
        da.pad(lazy, 2, mode=mode, reflect="odd")
    except ValueError:
        pass
    else:
        raise AssertionError("an unknown keyword is accepted")
PYTHON
