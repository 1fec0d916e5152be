#!/usr/bin/env bash
# control 0.10.2: the first power of the frequency response of a system with two inputs and outputs is not the response itself.
#
# python-control multiplies systems with several inputs and outputs as matrices, one matrix per frequency. The operator ** raises a
# system to a power. One would expect that H**1 is H, and H**2 is H * H. For state-space models and transfer functions they are. For
# frequency responses, the power 0 is a matrix of ones instead of the identity, and every power is computed down to the power 0. So
# H**1 has the sums of the rows of H in all its columns, and H**2 those of H * H. Systems with one input and output are right.
#
# A way around it: H * H.
#
# Seen with control 0.10.2, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the gains [1, 2] and [3, 4] at all frequencies:
#   powers 0, 1 and 2 of the state-space model:    [[1, 0], [0, 1]], [[1, 2], [3, 4]], [[7, 10], [15, 22]]
#   powers 0, 1 and 2 of the frequency response:   [[1, 1], [1, 1]], [[3, 3], [7, 7]], [[17, 17], [37, 37]]
#   product of the frequency response with itself: [[7, 10], [15, 22]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q control==0.10.2 numpy==2.4.6 scipy==1.17.1
MPLCONFIGDIR="$folder/matplotlib" "$folder/venv/bin/python" - <<'PYTHON'
import control
import numpy as np

gains = np.array([[1, 2], [3, 4]])
model = control.ss([], [], [], gains)
response = control.frd(model, [1.0, 10.0])


def at_one(system: control.StateSpace | control.FrequencyResponseData) -> list:
    values = system(1j)
    assert not values.imag.any()
    return values.real.astype(int).tolist()


powers = {what: [at_one(h**n) for n in range(3)] for what, h in (("model", model), ("response", response))}
product = at_one(response * response)
print("powers 0, 1 and 2 of the state-space model:", *powers["model"])
print("powers 0, 1 and 2 of the frequency response:", *powers["response"])
print("product of the frequency response with itself:", product)
expected = [np.linalg.matrix_power(gains, n) for n in range(3)]
assert np.array_equal(powers["model"], expected) and np.array_equal(product, expected[2])
ones = np.ones((2, 2), int)
assert np.array_equal(powers["response"], [power @ ones if n else ones for n, power in enumerate(expected)]), (
    "the behaviour has changed"
)
PYTHON
