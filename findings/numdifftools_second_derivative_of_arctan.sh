#!/usr/bin/env bash
# numdifftools 0.11.2: the multicomplex method is off by 6 % for the second derivative of arctan, and estimates its error as 2e-14.
#
# numdifftools differentiates functions numerically. Its multicomplex method evaluates them at bicomplex numbers and subtracts nothing, so
# that a step of 2e-15 is possible and a second derivative should be exact to about 15 digits. So it is for sin, exp, log, tanh and
# others. One would expect the same of arctan, arcsin and arccos, which its bicomplex numbers have as well. But these are computed as
# logarithms of a sum, in which a part of 1e-30, the one that the derivative is read from, is lost to rounding. The simpler methods
# are right, the estimated error shows nothing, and Hessian has the same problem.
#
# A way around it: method="complex" or "central", or step=1e-5.
#
# Seen with numdifftools 0.11.2, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the second derivative at 0.7:
#   arctan: exact -0.63060, central -0.63060, complex -0.63060, multicomplex -0.67188, estimated error 2e-14
#   arcsin: exact  1.92195, central  1.92195, complex  1.92195, multicomplex  1.87500, estimated error 3e-14
#   arccos: exact -1.92195, central -1.92195, complex -1.92195, multicomplex -1.87500, estimated error 3e-14
#   tanh:   exact -0.76723, central -0.76723, complex -0.76723, multicomplex -0.76723, estimated error 2e-14
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q numdifftools==0.11.2 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numdifftools
import numpy as np

x = 0.7
exact = {
    "arctan": -2 * x / (1 + x**2) ** 2,
    "arcsin": x / (1 - x**2) ** 1.5,
    "arccos": -x / (1 - x**2) ** 1.5,
    "tanh": -2 * np.tanh(x) / np.cosh(x) ** 2,
}
for name, expected in exact.items():
    function = getattr(np, name)
    line, errors = f"exact {expected: .5f}", {}
    for method in ("central", "complex", "multicomplex"):
        result = numdifftools.Derivative(function, n=2, method=method, full_output=True)(x)
        errors[method] = abs(float(result.estimate) / expected - 1)
        line += f", {method} {float(result.estimate): .5f}"
    print(f"{name + ':':7} {line}, estimated error {float(result.error_estimate):.0e}")
    assert errors["central"] < 1e-9 and errors["complex"] < 1e-9 and result.error_estimate < 1e-12
    if name == "tanh":
        assert errors["multicomplex"] < 1e-12
    else:
        assert errors["multicomplex"] > 1e-2, "the behaviour has changed"
    larger_step = numdifftools.Derivative(function, n=2, method="multicomplex", step=1e-5)(x)
    assert abs(larger_step / expected - 1) < 1e-6
PYTHON
