#!/usr/bin/env bash
# astropy 8.0.2: the Hermite polynomial of the second degree is 4 x**2 - 2 in x, and 4 y**2 - 4 in y.
#
# Hermite2D is a sum of products of Hermite polynomials in x and in y, with H2(x) = 4 x**2 - 2, as in Hermite1D and numpy. One would expect
# the same polynomials in both variables. In x they are right. In y, from the second degree on, they are others, and depend on the number of
# terms in x, which the recurrence for y adds to the degree. fit_deriv, the derivative by the coefficients, has the right polynomials. So
# LinearLSQFitter, which uses it, finds coefficients that do not fit the model: a fit to values of the model itself misses them by 2.
# Nothing warns of it. Chebyshev2D and Legendre2D are right.
#
# A way around it: numpy.polynomial.hermite.hermval2d, or Hermite1D models of each variable.
#
# Seen with astropy 8.0.2 and numpy 2.4.6, Python 3.11, for models of one variable with a single coefficient of 1, at 0, 0.5 and 1:
#   H1 in y: [0.0, 1.0, 2.0], expected [0.0, 1.0, 2.0]
#   H2 in x: [-2.0, -1.0, 2.0], expected [-2.0, -1.0, 2.0]
#   H2 in y: [-4.0, -3.0, 0.0], expected [-2.0, -1.0, 2.0]
#   H3 in x: [0.0, -5.0, -4.0], expected [0.0, -5.0, -4.0]
#   H3 in y: [0.0, -9.0, -12.0], expected [0.0, -5.0, -4.0]
#   fit of H2 in x: misses the model by 0.0
#   fit of H2 in y: misses the model by 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q astropy==8.0.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from astropy.modeling.fitting import LinearLSQFitter
from astropy.modeling.models import Hermite1D, Hermite2D

at = np.array([0.0, 0.5, 1.0])
formulas = {1: 2 * at, 2: 4 * at**2 - 2, 3: 8 * at**3 - 12 * at}
cases = (
    (1, "y", [0.0, 1.0, 2.0]),
    (2, "x", [-2.0, -1.0, 2.0]),
    (2, "y", [-4.0, -3.0, 0.0]),
    (3, "x", [0.0, -5.0, -4.0]),
    (3, "y", [0.0, -9.0, -12.0]),
)


def model(degree: int, variable: str) -> Hermite2D:
    result = Hermite2D(*((degree, 0) if variable == "x" else (0, degree)))
    result.parameters = [0.0] * degree + [1.0]
    return result


for degree, variable, seen in cases:
    found = model(degree, variable)(at, at).tolist()
    expected = formulas[degree].tolist()
    print(f"H{degree} in {variable}: {found}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert np.polynomial.hermite.hermval(at, [0] * degree + [1]).tolist() == expected
    assert Hermite1D(degree, **{f"c{degree}": 1.0})(at).tolist() == expected
    assert (found == expected) == (variable == "x" or degree == 1)
x, y = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 5))
for variable, seen in (("x", 0.0), ("y", 2.0)):
    values = model(2, variable)(x, y)
    fitted = LinearLSQFitter()(model(2, variable), x, y, values)
    missed = round(float(np.abs(fitted(x, y) - values).max()), 6)
    print(f"fit of H2 in {variable}: misses the model by {missed}")
    assert missed == seen, "the behaviour has changed"
PYTHON
