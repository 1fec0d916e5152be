#!/usr/bin/env bash
# accelerate 1.15.0: Accelerator.save_model leaves weights out of the checkpoint if they are disjoint views of one storage.
#
# Two layers whose weights are the two halves of one tensor share a storage, but no element. One would expect both
# weights in the file, or an error, as safetensors.torch.save_model gives one. accelerate takes them for tied weights: it
# keeps the first, drops the second with a warning that "this should be OK", and the values of the second are lost.
#
# Seen with accelerate 1.15.0, safetensors 0.8.0, torch 2.13.0 (CPU), Python 3.11:
#   saved: ['q.weight']      (k.weight is missing, and loading into the same model cannot restore it)
#   safetensors.torch.save_model: RuntimeError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q accelerate==1.15.0 safetensors==0.8.0 torch==2.13.0
"$folder/venv/bin/python" - "$folder/checkpoint" <<'PYTHON'
import sys

import accelerate
import torch
from safetensors.torch import load_file, save_model
from torch import nn


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        both = torch.randn(8, 4)
        self.q, self.k = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.q.weight, self.k.weight = nn.Parameter(both[:4]), nn.Parameter(both[4:])


model, folder = Pair(), sys.argv[1]
accelerate.Accelerator(cpu=True).save_model(model, folder)
saved = sorted(load_file(f"{folder}/model.safetensors"))
print("saved:", saved)
try:
    save_model(model, f"{folder}/other.safetensors")
    refused = False
except RuntimeError:
    refused = True
print("safetensors.torch.save_model:", "RuntimeError" if refused else "saved")
assert saved == ["q.weight"] and refused, "the behaviour has changed"
assert not torch.equal(model.q.weight, model.k.weight)
PYTHON
