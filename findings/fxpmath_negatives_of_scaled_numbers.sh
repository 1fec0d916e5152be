#!/usr/bin/env bash
# fxpmath 0.4.10: the negative of 10, stored with a scale of 2 and a bias of 1, is -4.5.
#
# An Fxp of fxpmath is a fixed-point number, and optional arguments add a scale and a bias: the value is 2 times the stored number, plus 1,
# for example. Sums, products and comparisons take them into account, and one would expect the same of every operator. But -x, +x, abs(x),
# x << 1 and x >> 1 compute with the stored number, which is 4.5 for a value of 10, and drop the scale and the bias. So +x is not x, and -x
# differs from 0 - x and from np.negative(x). Nothing warns of it.
#
# A way around it: 0 - x, np.abs(x), and 2 * x.
#
# Seen with fxpmath 0.4.10 and numpy 2.4.6, Python 3.11, with 16 bits, four of them for the fraction:
#   x:              of 10 10.0, of -10 -10.0
#   0 - x:          of 10 -10.0, of -10 10.0
#   np.negative(x): of 10 -10.0, of -10 10.0
#   -x:             of 10 -4.5, of -10 5.5
#   +x:             of 10 4.5, of -10 -5.5
#   np.abs(x):      of 10 10.0, of -10 10.0
#   abs(x):         of 10 4.5, of -10 5.5
#   2 * x:          of 10 20.0, of -10 -20.0
#   x << 1:         of 10 9.0, of -10 -11.0
#   x >> 1:         of 10 2.25, of -10 -2.75
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q fxpmath==0.4.10 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from fxpmath import Fxp

cases = (
    ("x", lambda x: x, lambda x: x, (10, -10)),
    ("0 - x", lambda x: 0 - x, lambda x: -x, (-10, 10)),
    ("np.negative(x)", np.negative, lambda x: -x, (-10, 10)),
    ("-x", lambda x: -x, lambda x: -x, (-4.5, 5.5)),
    ("+x", lambda x: +x, lambda x: x, (4.5, -5.5)),
    ("np.abs(x)", np.abs, abs, (10, 10)),
    ("abs(x)", abs, abs, (4.5, 5.5)),
    ("2 * x", lambda x: 2 * x, lambda x: 2 * x, (20, -20)),
    ("x << 1", lambda x: x << 1, lambda x: 2 * x, (9, -11)),
    ("x >> 1", lambda x: x >> 1, lambda x: x / 2, (2.25, -2.75)),
)
values = (10.0, -10.0)
for name, f, reference, seen in cases:
    found = tuple(float(f(Fxp(x, signed=True, n_word=16, n_frac=4, scale=2, bias=1))) for x in values)
    plain = tuple(float(f(Fxp(x, signed=True, n_word=16, n_frac=4))) for x in values)
    expected = tuple(reference(x) for x in values)
    print(f"{name + ':':15} of 10 {found[0]}, of -10 {found[1]}")
    assert plain == expected, "without a scale and a bias, the operators are right"
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (name not in ("-x", "+x", "abs(x)", "x << 1", "x >> 1"))
PYTHON
