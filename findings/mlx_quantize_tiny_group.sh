#!/usr/bin/env bash
# mlx 0.32.4: on a CPU, mxfp8 and mxfp4 turn a group of tiny weights into infinities.
#
# mx.quantize with mode="mxfp8" or "mxfp4" gives each group of 32 weights a scale 2^e, stored as the byte e + 127. One
# would expect that weights too small for the smallest scale become smaller numbers, or zeros. But e + 127 wraps around
# if it is negative: -7 becomes 249, which stands for 2^122. So weights that hardly matter become huge or infinite, and
# the results of a product with them as well. In mxfp8 this happens to groups whose largest weight is below 1.3e-36,
# although float32 and bfloat16 have normal numbers down to 1.2e-38.
#
# Seen with mlx 0.32.4 on a CPU (x86-64), Python 3.11, for rows of 32 equal weights, 1, 2^-110 and 2^-126, times ones:
#   not quantized: [32.0, 2.465190328815662e-32, 3.76158192263132e-37]
#   mxfp8:         [32.0, 2.465190328815662e-32, inf], scales [119, 9, 249]
#   mxfp4:         [32.0, 2.465190328815662e-32, inf], scales [125, 15, 255]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4'
"$folder/venv/bin/python" - <<'PYTHON'
import mlx.core as mx

mx.set_default_device(mx.cpu)
x = mx.ones((1, 32))
w = mx.repeat(mx.array([[1.0], [2.0**-110], [2.0**-126]]), 32, axis=1)
exact = (x @ w.T)[0].tolist()
print("not quantized:", exact)
found = {}
for mode in ("mxfp8", "mxfp4"):
    weights, scales = mx.quantize(w, mode=mode)
    found[mode] = mx.quantized_matmul(x, weights, scales, mode=mode)[0].tolist(), scales[:, 0].tolist()
    print("{}: {}, scales {}".format(mode, *found[mode]))
assert exact == [32.0, 32 * 2.0**-110, 32 * 2.0**-126]
results = [*exact[:2], float("inf")]
expected = {"mxfp8": (results, [119, 9, 249]), "mxfp4": (results, [125, 15, 255])}
assert found == expected, "the behaviour has changed"
PYTHON
