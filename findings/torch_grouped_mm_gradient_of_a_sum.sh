#!/usr/bin/env bash
# torch 2.13.0: F.grouped_mm(x, w, offs=offs).sum().backward() raises an error.
#
# The gradient of a sum is one number, expanded to the shape of the result, with strides of 0. One would expect that it
# works as for every other matmul. The backward pass of grouped_mm hands the expanded gradient to a grouped_mm that refuses
# such strides. After a multiplication by ones, which makes the gradient contiguous, the same call works.
#
# Seen with torch 2.13.0 (CPU), Python 3.11:
#   sum:               RuntimeError: Invalid strides/sizes, got [0, 0] for strides and [8, 16] for sizes
#   times ones, sum:   (8, 16)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import torch.nn.functional as F

x = torch.ones(8, 16, dtype=torch.bfloat16, requires_grad=True)
w = torch.ones(2, 16, 16, dtype=torch.bfloat16, requires_grad=True)
result = F.grouped_mm(x, w, offs=torch.tensor([3, 8], dtype=torch.int32))
found = []
for loss in (result.sum(), (result * torch.ones_like(result)).sum()):
    try:
        found.append(str(tuple(torch.autograd.grad(loss, x, retain_graph=True)[0].shape)))
    except RuntimeError as error:
        found.append(f"RuntimeError: {error}")
for what, outcome in zip(("sum", "times ones, sum"), found):
    print(f"{what}: {outcome}")
assert found[0].startswith("RuntimeError: Invalid strides/sizes") and found[1] == "(8, 16)", "the behaviour has changed"
PYTHON
