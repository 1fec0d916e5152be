#!/usr/bin/env bash
# dcor 0.7: the distance correlation of two arrays of uint8 is 75 million.
#
# The distance correlation of two random variables lies between 0 and 1, and distance_correlation of dcor computes it from arrays of
# observations. One would expect the same result for the same numbers, whatever the type of the arrays. But dcor computes with the type that
# it is given: the products of observations, and their running sums, wrap around in uint8, and the result is far out of range.
# method="naive", which takes all pairs, gives another wrong result, since the differences and their squares wrap around. In int16, the
# square of 190 becomes negative, and its root NaN. For all integers, dcor warns that it falls back to uncompiled code, and for NaN numpy
# warns of an invalid value. Larger signed integers are right.
#
# A way around it: x.astype(float).
#
# Seen with dcor 0.7, numpy 2.4.6, scipy 1.17.1 and numba 0.68.1, Python 3.11, for x = (10, 200, 30, 250, 90, 140) and y = (1, 2, ..., 6):
#   float64: correlation 0.577, by the naive method 0.577, expected 0.577
#   int64:   correlation 0.577, by the naive method 0.577, expected 0.577
#   int16:   correlation 0.577, by the naive method nan, expected 0.577
#   uint8:   correlation 7.57e+07, by the naive method 0.301, expected 0.577
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q dcor==0.7 numpy==2.4.6 scipy==1.17.1 numba==0.68.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import dcor
import numpy as np

x = np.array([10, 200, 30, 250, 90, 140])
y = np.arange(1, 7)


def centred_distances(values: np.ndarray) -> np.ndarray:
    distances = np.abs(values[:, None] - values).astype(float)
    return distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean()


a, b = centred_distances(x), centred_distances(y)
expected = np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean()))
cases = (
    ("float64", 0.577, 0.577),
    ("int64", 0.577, 0.577),
    ("int16", 0.577, np.nan),
    ("uint8", 7.57e7, 0.301),
)
for dtype, seen, seen_naive in cases:
    arrays = x.astype(dtype), y.astype(dtype)
    assert np.array_equal(arrays[0], x) and np.array_equal(arrays[1], y)
    found, naive = dcor.distance_correlation(*arrays), dcor.distance_correlation(*arrays, method="naive")
    print(f"{dtype + ':':8} correlation {found:.3g}, by the naive method {naive:.3g}, expected {expected:.3g}")
    assert np.allclose([found, naive], [seen, seen_naive], rtol=0.01, equal_nan=True), "the behaviour has changed"
    assert np.isclose(found, expected) == (dtype != "uint8")
PYTHON
