#!/usr/bin/env bash
# flox 0.11.2: the smallest value of a group is NaN or infinity, depending on the order of the labels.
#
# flox computes reductions of groups for xarray and others. nanmin is the smallest value of each group without NaN, and numpy's nanmin
# of [inf, inf] is inf. One would expect inf for such a group, wherever its elements are. By default flox chooses one of its engines,
# and if the labels are sorted, it takes the one named flox. This engine replaces NaN by inf, takes the smallest value, and then
# turns inf into NaN, also where it was in the data. For nanmax the same happens to -inf. min and max are right.
#
# A way around it: engine="numpy".
#
# Seen with flox 0.11.2, numpy 2.4.6 and pandas 3.1.1, Python 3.11, without numbagg (flox prefers this package if it is installed):
#   labels [0, 0, 1, 1], values [1.0, 2.0, inf, inf]: nanmin [1.0, nan], with engine="numpy" [1.0, inf], min [1.0, inf]
#   labels [1, 0, 1, 0], values [inf, 1.0, inf, 2.0]: nanmin [1.0, inf], with engine="numpy" [1.0, inf], min [1.0, inf]
#   labels [1, 1, 0, 0], values [inf, inf, 1.0, 2.0]: nanmin [1.0, inf], with engine="numpy" [1.0, inf], min [1.0, inf]
#   labels [0, 0, 1, 1], values [1.0, 2.0, nan, inf]: nanmin [1.0, nan], with engine="numpy" [1.0, inf], min [1.0, nan]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q flox==0.11.2 numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from flox import groupby_reduce

inf, nan = np.inf, np.nan
cases = (
    ([0, 0, 1, 1], [1.0, 2.0, inf, inf], nan),
    ([1, 0, 1, 0], [inf, 1.0, inf, 2.0], inf),
    ([1, 1, 0, 0], [inf, inf, 1.0, 2.0], inf),
    ([0, 0, 1, 1], [1.0, 2.0, nan, inf], nan),
)


def smallest(values: np.ndarray, labels: np.ndarray, func: str, engine: str | None = None) -> list[float]:
    return groupby_reduce(values, labels, func=func, engine=engine)[0].tolist()


for labels, values, seen in cases:
    arrays = np.array(values), np.array(labels)
    found, by_numpy = smallest(*arrays, "nanmin"), smallest(*arrays, "nanmin", "numpy")
    text = f'labels {labels}, values {values}: nanmin {found}, with engine="numpy" {by_numpy}'
    print(f"{text}, min {smallest(*arrays, 'min')}")
    assert by_numpy == [np.nanmin(arrays[0][arrays[1] == label]) for label in (0, 1)] == [1, inf]
    assert np.array_equal(found, [1, seen], equal_nan=True), "the behaviour has changed"
    largest = smallest(-arrays[0], arrays[1], "nanmax")
    assert np.array_equal(largest, [-1, -seen], equal_nan=True), "the behaviour has changed"
PYTHON
