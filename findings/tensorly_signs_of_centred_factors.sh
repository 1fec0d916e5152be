#!/usr/bin/env bash
# tensorly 0.10.0: cp_flip_sign removes a component of a tensor if one of its vectors has a mean of zero.
#
# A CP decomposition is a sum of components, each of which is the outer product of one vector per mode. Two vectors of a component can
# change their signs without a change of the tensor. cp_flip_sign uses that to make the means of all vectors positive but those of one
# mode. One would expect the same tensor as before. But a vector with a mean of zero, like [1, -1], has the sign 0, and cp_flip_sign
# multiplies this vector, and that of the chosen mode, by the sign. Both become zero, and the component with them. Such vectors are
# usual for centred data. The vectors of the argument are replaced, too, so that they are lost. Nothing warns of either.
#
# A way around it: func=lambda factor, axis: 2 * (factor.mean(axis=axis) >= 0) - 1, and a copy of the decomposition.
#
# Seen with tensorly 0.10.0 and numpy 2.4.6, Python 3.11, for a tensor of one component, the outer product of [2, 3], y and [1, 2]:
#   y = [1, 5]: before [[[2, 4], [10, 20]], [[3, 6], [15, 30]]], after [[[2, 4], [10, 20]], [[3, 6], [15, 30]]]
#   y = [-1, -5]: before [[[-2, -4], [-10, -20]], [[-3, -6], [-15, -30]]], after [[[-2, -4], [-10, -20]], [[-3, -6], [-15, -30]]]
#   y = [1, -1]: before [[[2, 4], [-2, -4]], [[3, 6], [-3, -6]]], after [[[0, 0], [0, 0]], [[0, 0], [0, 0]]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q tensorly==0.10.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from tensorly.cp_tensor import CPTensor, cp_flip_sign, cp_to_tensor


def decomposition(y: list[float]) -> CPTensor:
    return CPTensor((np.ones(1), [np.array([vector]).T for vector in ([2.0, 3.0], y, [1.0, 2.0])]))


def text(tensor: np.ndarray) -> str:
    return str(np.round(tensor).astype(int).tolist())


def sign(factor: np.ndarray, axis: int) -> np.ndarray:
    return 2 * (factor.mean(axis=axis) >= 0) - 1


for y in ([1.0, 5.0], [-1.0, -5.0], [1.0, -1.0]):
    before = text(cp_to_tensor(decomposition(y)))
    argument = decomposition(y)
    after = text(cp_to_tensor(cp_flip_sign(argument)))
    print(f"y = {[int(number) for number in y]}: before {before}, after {after}")
    vanished = "[[[0, 0], [0, 0]], [[0, 0], [0, 0]]]"
    assert after == (vanished if sum(y) == 0 else before), "the behaviour has changed"
    assert argument.factors[1].ravel().tolist() == [abs(number) if sum(y) else 0 for number in y], "the behaviour has changed"
    assert text(cp_to_tensor(cp_flip_sign(decomposition(y), func=sign))) == before
PYTHON
