#!/usr/bin/env bash
# interval-py 1.0.5: the absolute values of the numbers from -1 to 2 are given as 1 to 2, and of those from -3 to -1 as 3 to 1.
#
# Interval arithmetic promises bounds: f(x) must be inside of the interval that f gives for an interval with x inside. One would expect the
# absolute values of [-1, 2] to be [0, 2], since 0 is inside. The result is [1, 2], which the absolute values of -0.5, 0 and 0.5 are not in.
# The bounds of negative intervals come in the wrong order, so no number is inside at all. It is the same with abs(x) and the function abs
# of the module. Odd negative powers have their bounds in the wrong order too. Nothing warns of it. Even powers are right.
#
# A way around it: (x ** 2).sqrt().
#
# Seen with interval-py 1.0.5, Python 3.11:
#   abs [-1, 2]:  [1, 2], expected [0, 2]
#   abs [-3, 2]:  [2, 3], expected [0, 3]
#   abs [-3, -1]: [3, 1], expected [1, 3]
#   abs [1, 3]:   [1, 3], expected [1, 3]
#   [1, 2] ** -1: [1.0, 0.5], expected [0.5, 1.0]
#   [1, 2] ** -2: [0.25, 1.0], expected [0.25, 1.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q interval-py==1.0.5 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import intervalpy.interval as module
from intervalpy.interval import Interval

cases = (
    ("abs [-1, 2]", abs, [-1, 2], [1, 2], [0, 2]),
    ("abs [-3, 2]", abs, [-3, 2], [2, 3], [0, 3]),
    ("abs [-3, -1]", abs, [-3, -1], [3, 1], [1, 3]),
    ("abs [1, 3]", abs, [1, 3], [1, 3], [1, 3]),
    ("[1, 2] ** -1", lambda x: x**-1, [1, 2], [1.0, 0.5], [0.5, 1.0]),
    ("[1, 2] ** -2", lambda x: x**-2, [1, 2], [0.25, 1.0], [0.25, 1.0]),
)
for name, f, bounds, seen, expected in cases:
    found = f(Interval(bounds)).x
    low, high = bounds
    values = [f(low + (high - low) * k / 60) for k in range(61)]
    print(f"{name + ':':13} {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert all(expected[0] <= value <= expected[1] for value in values)
    assert all(found[0] <= value <= found[1] for value in values) == (found == expected)
    if f is abs:
        assert module.abs(Interval(bounds)).x == seen
        assert (Interval(bounds) ** 2).sqrt().x == expected
PYTHON
