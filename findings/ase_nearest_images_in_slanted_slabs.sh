#!/usr/bin/env bash
# ase 3.29.0: the distance to the nearest image of an atom is 5, and the atom itself is 3 away.
#
# atoms.get_distance(i, j, mic=True) is the distance between atom i and the nearest periodic image of atom j. The atom itself is one of its
# images, so one would expect at most the plain distance. ase describes the algorithm behind it, general_find_mic, as safe for any cell. But
# if the cell is not periodic along one vector, and this vector is not perpendicular to the others, some distances are too large. The code
# wraps the difference of the positions into the cell, along the periodic vectors only. In a slanted cell, the wrapped difference can be
# far from the shortest one, and then the code tries only the images next to it. Nothing warns of it. get_all_distances and find_mic give
# the same. A cell that is periodic along all vectors is right, and so is the neighbour list.
#
# A way around it: atoms.cell[2] = 0 for a slab, since ase does not need a vector along which the cell is not periodic.
#
# Seen with ase 3.29.0, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for an atom at (0, 0, z) above one at the origin, in a cell with the
# vectors (4, 0, 0), (0, 4, 0) and c. Expected is the shortest of many images:
#   c = (0, 0, 10), z = 3, periodic along a, b:     get_distance 3.0, expected 3.0, without c 3.0
#   c = (6, 0, 10), z = 8, periodic along a, b:     get_distance 8.94, expected 8.0, without c 8.0
#   c = (20, 0, 10), z = 3, periodic along a, b:    get_distance 5.0, expected 3.0, without c 3.0
#   c = (20, 0, 10), z = 8, periodic along a, b:    get_distance 14.42, expected 8.0, without c 8.0
#   c = (20, 0, 10), z = 8, periodic along a, b, c: get_distance 2.0, expected 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q ase==3.29.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import itertools

import numpy as np
from ase import Atoms
from ase.neighborlist import neighbor_list

cases = (
    ((0, 0, 10), 3, False, 3.0),
    ((6, 0, 10), 8, False, 8.94),
    ((20, 0, 10), 3, False, 5.0),
    ((20, 0, 10), 8, False, 14.42),
    ((20, 0, 10), 8, True, 2.0),
)
for c, z, periodic, seen in cases:
    cell = np.array([(4, 0, 0), (0, 4, 0), c], float)
    atoms = Atoms("H2", positions=[(0, 0, 0), (0, 0, z)], cell=cell, pbc=(True, True, periodic))
    found = round(float(atoms.get_distance(0, 1, mic=True)), 2)
    steps = (range(-9, 10), range(-9, 10), range(-9, 10) if periodic else [0])
    images = np.array([(0, 0, z) + np.array(step) @ cell for step in itertools.product(*steps)])
    expected = round(float(np.linalg.norm(images, axis=1).min()), 2)
    title = f"c = {c}, z = {z}, periodic along a, b{', c' if periodic else ''}:"
    text = f"{title:47} get_distance {found}, expected {expected}"
    if not periodic:
        flat = atoms.copy()
        flat.cell[2] = 0
        without = round(float(flat.get_distance(0, 1, mic=True)), 2)
        text += f", without c {without}"
        assert without == expected == z == atoms.get_distance(0, 1)
    print(text)
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (periodic or c[0] == 0)
    first, second, distances = neighbor_list("ijd", atoms, 9.0)
    assert np.isclose(distances[(first == 0) & (second == 1)].min(), expected)
PYTHON
