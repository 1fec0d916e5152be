#!/usr/bin/env bash
# tinygrad 0.14.0: asinh of -5000 is minus infinity, and of 5000 it is 9.21.
#
# Tensor.asinh is the inverse hyperbolic sine. One would expect that asinh(-x) is -asinh(x), to float32 accuracy, since sinh is odd. The
# code computes the logarithm of x + sqrt(x**2 + 1). For a negative x, the two terms nearly cancel: their sum has few correct bits left at
# -1000, and is 0 from about -4096 on, so that the logarithm is minus infinity. Nothing warns of it. For positive x, the result is right.
#
# A way around it: x.abs().asinh() * x.sign().
#
# Seen with tinygrad 0.14.0 and numpy 2.4.6, Python 3.11, with DEV=PYTHON:
#   x = 1:    asinh(x) 0.881374, asinh(-x) -0.881374, numpy -0.881374
#   x = 100:  asinh(x) 5.29834, asinh(-x) -5.29887, numpy -5.29834
#   x = 1000: asinh(x) 7.6009, asinh(-x) -7.62462, numpy -7.6009
#   x = 3000: asinh(x) 8.69951, asinh(-x) -8.31777, numpy -8.69951
#   x = 5000: asinh(x) 9.21034, asinh(-x) -inf, numpy -9.21034
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q tinygrad==0.14.0 numpy==2.4.6
DEV=PYTHON XDG_CACHE_HOME="$folder/cache" "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from tinygrad import Tensor

for x in (1.0, 100.0, 1000.0, 3000.0, 5000.0):
    positive, negative = Tensor([x, -x]).asinh().tolist()
    expected = np.arcsinh(np.float32(-x))
    title = f"x = {x:g}:"
    print(f"{title:9} asinh(x) {positive:.6g}, asinh(-x) {negative:.6g}, numpy {expected:.6g}")
    assert np.isclose(positive, -expected, rtol=1e-5)
    error = abs(negative / expected - 1)
    assert (error < 1e-5) == (x == 1) and (error > 1e-3) == (x >= 1000), "the behaviour has changed"
    assert np.isneginf(negative) == (x == 5000), "the behaviour has changed"
    by_sign = Tensor([-x]).abs().asinh() * Tensor([-x]).sign()
    assert np.isclose(by_sign.item(), expected, rtol=1e-5)
PYTHON
