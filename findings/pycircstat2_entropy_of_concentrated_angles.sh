#!/usr/bin/env bash
# pycircstat2 0.1.15: the entropy of a von Mises distribution grows when the distribution gets narrower.
#
# vonmises(mu, kappa) of pycircstat2 is a distribution of angles around mu, which is narrower the larger kappa is. entropy is documented to
# be the entropy of the distribution. One would expect the integral of -p log(p), which is log(2 pi) for a kappa near 0, as all angles are
# as probable then, and gets smaller with kappa. For scipy.stats.vonmises it is. Here the value is log(2 pi) minus the entropy, so it is
# near 0 for the uniform distribution, and grows with kappa. Nothing warns of it. Its method pdf, and the entropy of other distributions
# such as cardioid, which is integrated, are right.
#
# A way around it: np.log(2 * np.pi) minus the result.
#
# Seen with pycircstat2 0.1.15 and scipy 1.17.1, Python 3.11:
#   vonmises, kappa 0.5: entropy 0.0597, integral 1.7782, scipy 1.7782
#   vonmises, kappa 1.5: entropy 0.3954, integral 1.4425, scipy 1.4425
#   vonmises, kappa 5:   entropy 1.1622, integral 0.6756, scipy 0.6756
#   cardioid, rho 0.3:   entropy 1.7432, integral 1.7432
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q pycircstat2==0.1.15 numpy==2.4.6 scipy==1.17.1
MPLCONFIGDIR="$folder" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from pycircstat2.distributions import cardioid, vonmises
from scipy import stats
from scipy.integrate import quad


def integral(distribution: object) -> float:
    def f(x: float) -> float:
        density = float(np.ravel(distribution.pdf(np.array([x])))[0])
        return -density * np.log(density)

    return quad(f, 0, 2 * np.pi, limit=200)[0]


for kappa, seen in ((0.5, 0.0597), (1.5, 0.3954), (5.0, 1.1622)):
    distribution = vonmises(2.0, kappa)
    found, expected, scipy = distribution.entropy(), integral(distribution), stats.vonmises(kappa).entropy()
    name = f"vonmises, kappa {kappa:g}:"
    print(f"{name:20} entropy {found:.4f}, integral {expected:.4f}, scipy {scipy:.4f}")
    assert np.isclose(expected, scipy) and np.isclose(np.log(2 * np.pi) - found, expected)
    assert round(float(found), 4) == seen, "the behaviour has changed"
distribution = cardioid(1.0, 0.3)
print(f"cardioid, rho 0.3:   entropy {distribution.entropy():.4f}, integral {integral(distribution):.4f}")
assert np.isclose(distribution.entropy(), integral(distribution))
PYTHON
