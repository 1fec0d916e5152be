#!/usr/bin/env bash
# obspy 1.5.1: delayed_sta_lta of a constant signal is the ratio of the two lengths, instead of 1.
#
# delayed_sta_lta(a, nsta, nlta), which finds the arrival of seismic waves, is documented as the ratio of a short-time average and a
# long-time average, taken of the squares. The long window lies before the short one. Of a constant signal all averages are the same, so one
# would expect 1. But the code does not subtract the square that leaves a window: it adds it. So both averages are sums over all samples so
# far, and the ratio for a constant signal is nlta / nsta. A burst after a thousand samples is hardly seen: below, the energy becomes 100
# times as large, and the result grows by a tenth. Nothing warns of it. classic_sta_lta, whose two windows end together, is right.
#
# A way around it: classic_sta_lta, or averages from numpy.cumsum(a**2).
#
# Seen with obspy 1.5.1, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for 1,200 samples of 1, at sample 1001. For the burst, samples 1000 and
# 1001 are 10:
#   constant, nsta 2, nlta 2:  delayed 1.0, expected 1.0; classic 1.0, expected 1.0
#   constant, nsta 2, nlta 20: delayed 10.0, expected 1.0; classic 1.0, expected 1.0
#   constant, nsta 5, nlta 20: delayed 4.0, expected 1.0; classic 1.0, expected 1.0
#   burst, nsta 2, nlta 20:    delayed 10.99, expected 100.0; classic 9.17, expected 9.17
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q obspy==1.5.1 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from obspy.signal.trigger import classic_sta_lta, delayed_sta_lta

cases = (
    ("constant", 2, 2, 1.0),
    ("constant", 2, 20, 10.0),
    ("constant", 5, 20, 4.0),
    ("burst", 2, 20, 10.99),
)
at = 1001
for name, nsta, nlta, seen in cases:
    signal = np.ones(1200)
    if name == "burst":
        signal[1000:1002] = 10
    squares = signal[: at + 1] ** 2
    short = squares[-nsta:].mean()
    expected = round(float(short / squares[-nsta - nlta : -nsta].mean()), 2)
    expected_classic = round(float(short / squares[-nlta:].mean()), 2)
    found = round(float(delayed_sta_lta(signal, nsta, nlta)[at]), 2)
    classic = round(float(classic_sta_lta(signal, nsta, nlta)[at]), 2)
    title = f"{name}, nsta {nsta}, nlta {nlta}:"
    print(f"{title:26} delayed {found}, expected {expected}; classic {classic}, expected {expected_classic}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (nsta == nlta) and classic == expected_classic
PYTHON
