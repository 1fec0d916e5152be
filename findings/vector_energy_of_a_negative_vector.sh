#!/usr/bin/env bash
# vector 1.9.0: a + (-a) has twice the energy of a if a was made from a mass.
#
# vector has four-vectors for particle physics, and each can be expressed by Cartesian or other coordinates, and by an energy or a mass.
# One would expect the same vectors from both. a + (-a) should be zero, as a - a is, and a factor of -2 should change the sign of all four
# components. For a vector that was made from an energy, both hold. If it was made from a mass, the momentum changes its sign, and the
# energy does not: the mass is multiplied by the absolute value of the factor, and the energy follows from the mass. It is the same for
# arrays of vectors. Nothing warns of it.
#
# A way around it: a.to_pxpypzenergy(), or subtract instead of adding a negative vector.
#
# Seen with vector 1.9.0 and numpy 2.4.6, Python 3.11, for a momentum of 3, an energy of 5, and a mass of 4:
#   a:        from an energy [3, 0, 0, 5], from a mass [3, 0, 0, 5]
#   -a:       from an energy [-3, 0, 0, -5], from a mass [-3, 0, 0, 5]
#   -2 * a:   from an energy [-6, 0, 0, -10], from a mass [-6, 0, 0, 10]
#   a + (-a): from an energy [0, 0, 0, 0], from a mass [0, 0, 0, 10]
#   a - a:    from an energy [0, 0, 0, 0], from a mass [0, 0, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q vector==1.9.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import vector

by_energy = vector.obj(px=3.0, py=0.0, pz=0.0, E=5.0)
by_mass = vector.obj(px=3.0, py=0.0, pz=0.0, mass=4.0)
cases = (
    ("a", lambda a: a, [3, 0, 0, 5], [3, 0, 0, 5]),
    ("-a", lambda a: -a, [-3, 0, 0, -5], [-3, 0, 0, 5]),
    ("-2 * a", lambda a: -2 * a, [-6, 0, 0, -10], [-6, 0, 0, 10]),
    ("a + (-a)", lambda a: a + (-a), [0, 0, 0, 0], [0, 0, 0, 10]),
    ("a - a", lambda a: a - a, [0, 0, 0, 0], [0, 0, 0, 0]),
)


def components(a: vector.Vector) -> list[int]:
    return [round(float(component)) for component in (a.px, a.py, a.pz, a.E)]


assert by_energy.mass == by_mass.mass == 4 and by_energy.E == by_mass.E == 5
assert components(-by_mass.to_pxpypzenergy()) == [-3, 0, 0, -5]
array = vector.array({"px": [3.0], "py": [0.0], "pz": [0.0], "mass": [4.0]})
for name, f, of_energy, of_mass in cases:
    found = components(f(by_energy)), components(f(by_mass))
    print(f"{name + ':':9} from an energy {found[0]}, from a mass {found[1]}")
    assert found == (of_energy, of_mass), "the behaviour has changed"
    assert components(f(array)[0]) == of_mass, "the behaviour has changed"
PYTHON
