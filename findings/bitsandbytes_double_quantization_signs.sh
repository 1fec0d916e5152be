#!/usr/bin/env bash
# bitsandbytes 0.50.2: Linear4bit, with its defaults, flips the signs of a row of small weights.
#
# A 4-bit layer gives each block of 64 weights a scale, the largest absolute value of the block. By default it quantises these
# scales as well, to 8 bits (compress_statistics=True, the double quantization of QLoRA). One would expect that small weights
# lose precision, or become zeros. But the 8 bits hold the difference between a scale and the mean of all scales. If rounding
# changes this difference by more than the scale, the scale becomes negative, and every weight of the block gets the wrong
# sign. Here weights of 0.02 become -0.015, because another row has weights of 8.
#
# A way around it: compress_statistics=False.
#
# Seen with bitsandbytes 0.50.2 and torch 2.13.0 (CPU), Python 3.11, for a layer whose row i is w[i] * [1, -1, 1, -1, ...],
# and the first weight of each row:
#   w:                      [0.02, 1.0, 1.0, 8.0]
#   nf4:                    [-0.015, 0.9896, 0.9896, 8.0]
#   fp4:                    [-0.015, 0.9896, 0.9896, 8.0]
#   nf4, scales in float32: [0.02, 1.0, 1.0, 8.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q bitsandbytes==0.50.2 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit

w = torch.tensor([0.02, 1.0, 1.0, 8.0])
signs = torch.tensor([1.0, -1.0]).repeat(32)


def dequantized(**options) -> torch.Tensor:
    layer = Linear4bit(64, 4, bias=False, **options)
    layer.load_state_dict({"weight": torch.outer(w, signs)})
    layer = layer.to("cpu")  # quantises the weights
    rows = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    assert torch.equal(rows, torch.outer(rows[:, 0], signs))
    return rows[:, 0]


def show(what: str, values: torch.Tensor) -> None:
    print(f"{what}: {[round(value, 4) for value in values.tolist()]}")


show("w", w)
for kind in ("nf4", "fp4"):
    found = dequantized(quant_type=kind)
    show(kind, found)
    assert -0.02 < found[0] < -0.01 and (found[1:] > 0.9).all(), "the behaviour has changed"
found = dequantized(quant_type="nf4", compress_statistics=False)
show("nf4, scales in float32", found)
assert torch.allclose(found, w), "the behaviour has changed"
PYTHON
