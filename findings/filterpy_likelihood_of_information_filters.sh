#!/usr/bin/env bash
# filterpy 2.0.0: InformationFilter gives other likelihoods than KalmanFilter for the same measurement.
#
# An information filter is a Kalman filter that stores the inverses of covariances. log_likelihood, after an update, is documented as the
# log-likelihood of the last measurement in both classes, so one would expect the same number. The states agree. But InformationFilter takes
# the information matrix of the state after the update, P_inv + H' R_inv H, for the covariance of the measurement, which is H P H' + R. Both
# are 2 if all variances are 1. Otherwise the likelihood is wrong: below, the measurement 3 becomes less likely if the variance of the state
# grows from 1 to 4, and it should become more likely. Nothing warns of it.
#
# A way around it: the normal density of y, with the covariance H @ inv(P_inv) @ H.T + inv(R_inv) from before the update.
#
# Seen with filterpy 2.0.0, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for a number with the mean 0 and the variance P, measured as z with
# the variance R. Expected is the log of the density of a normal distribution with the variance P + R at z:
#   P = 1, R = 1, z = 3:   InformationFilter -3.516, KalmanFilter -3.516, expected -3.516
#   P = 4, R = 1, z = 3:   InformationFilter -4.631, KalmanFilter -2.624, expected -2.624
#   P = 100, R = 1, z = 3: InformationFilter -5.379, KalmanFilter -3.271, expected -3.271
#   P = 4, R = 1, z = 0:   InformationFilter -1.031, KalmanFilter -1.724, expected -1.724
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q filterpy==2.0.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import math

import numpy as np
from filterpy.kalman import InformationFilter, KalmanFilter

cases = ((1, 1, 3, -3.516), (4, 1, 3, -4.631), (100, 1, 3, -5.379), (4, 1, 0, -1.031))
for p, r, z, seen in cases:
    information, kalman = InformationFilter(dim_x=1, dim_z=1), KalmanFilter(dim_x=1, dim_z=1)
    information.P_inv, information.R_inv = np.array([[1 / p]]), np.array([[1 / r]])
    kalman.P, kalman.R = np.array([[float(p)]]), np.array([[float(r)]])
    for kind in (information, kalman):
        kind.x, kind.H = np.array([[0.0]]), np.array([[1.0]])
        kind.update(np.array([[float(z)]]))
    assert np.isclose(information.x, kalman.x) and np.isclose(kalman.x, z * p / (p + r))
    found, other = (round(float(kind.log_likelihood), 3) for kind in (information, kalman))
    expected = round(-(math.log(2 * math.pi * (p + r)) + z**2 / (p + r)) / 2, 3)
    print(f"{f'P = {p}, R = {r}, z = {z}:':22} InformationFilter {found}, KalmanFilter {other}, expected {expected}")
    assert found == seen, "the behaviour has changed"
    assert other == expected and (found == expected) == (p == 1)
PYTHON
