#!/usr/bin/env bash
# pint 0.25.3: np.mod of 100 centimetres and 70 centimetres is 30 centimetres, and of 1 metre and 70 centimetres it is 1 metre.
#
# pint adds physical units to numpy arrays, and numpy's functions keep track of them. One would expect np.mod(x, y) to convert y to the
# unit of x, as x % y does. But np.mod, np.remainder and np.fmod divide the bare numbers, so that 1 mod 70 is 1. They even divide metres by
# seconds, and 370 degrees by 2 pi radians. np.floor_divide rounds the bare quotient, unlike x // y: 1 // 70 is 0. np.sum converts no
# initial value, and np.subtract gives the difference of two temperatures as a temperature. Other functions, like np.maximum and np.hypot,
# convert. Nothing warns of it.
#
# A way around it: the operators %, // and -, and np.sum without an initial value.
#
# Seen with pint 0.25.3 and numpy 2.4.6, Python 3.11, for m = 1 metre, c = 70 centimetres, s = 1 second, an angle of 370 degrees,
# a turn of 2 pi radians, metres = [1, 2] metres, and temperatures of 20 and 10 degrees Celsius:
#   m % c:                           0.3 m
#   np.mod(m.to('cm'), c):           30 cm
#   np.mod(m, c):                    1 m
#   np.fmod(m, c):                   1 m
#   np.mod(m, s):                    0 m
#   angle % turn:                    10 deg
#   np.mod(angle, turn):             5.5753 deg
#   m // c:                          1
#   np.floor_divide(m, c):           0 m / cm
#   np.max(metres, initial=c):       2 m
#   np.sum(metres, initial=c):       73 m
#   (warm - cold).to('K'):           10 K
#   np.subtract(warm, cold).to('K'): 283.15 K
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pint==0.25.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pint

units = pint.UnitRegistry()
m, c, s = units.Quantity(1.0, "m"), units.Quantity(70.0, "cm"), units.Quantity(1.0, "s")
angle, turn = units.Quantity(370.0, "deg"), units.Quantity(2 * np.pi, "rad")
warm, cold = units.Quantity(20.0, "degC"), units.Quantity(10.0, "degC")
metres = units.Quantity(np.array([1.0, 2.0]), "m")
cases = (
    ("m % c", 0.3, "m"),
    ("np.mod(m.to('cm'), c)", 30, "cm"),
    ("np.mod(m, c)", 1, "m"),
    ("np.fmod(m, c)", 1, "m"),
    ("np.mod(m, s)", 0, "m"),
    ("angle % turn", 10, "deg"),
    ("np.mod(angle, turn)", 370 % (2 * np.pi), "deg"),
    ("m // c", 1, ""),
    ("np.floor_divide(m, c)", 0, "m/cm"),
    ("np.max(metres, initial=c)", 2, "m"),
    ("np.sum(metres, initial=c)", 73, "m"),
    ("(warm - cold).to('K')", 10, "K"),
    ("np.subtract(warm, cold).to('K')", 283.15, "K"),
)
for formula, number, unit in cases:
    found = eval(formula)
    print(f"{formula + ':':32} {found.magnitude:.5g} {found.units:~}".rstrip())
    assert np.isclose(found.magnitude, number) and found.units == units.Unit(unit), "the behaviour has changed"
try:
    m % s
except pint.DimensionalityError:
    pass
else:
    raise AssertionError("the behaviour has changed")
PYTHON
