#!/usr/bin/env bash
# kernels 0.17.2: kernelize() replaces the forward of a subclass that has overridden it, without a word.
#
# use_kernel_forward_from_hub marks a layer class, and kernelize() gives its modules the forward of a kernel. A subclass with a
# forward of its own, which scales the result or adds an adapter, inherits the mark. One would expect kernelize() to leave it alone, or
# to refuse it: the kernel is a replacement for the class that was marked. It replaces the subclass's forward by the kernel of the base
# class, without a warning, and with use_fallback=False as well. The results are then those of the base class.
#
# A way around it: condition=lambda module: type(module) is Layer.
#
# Seen with kernels 0.17.2, torch 2.13.0 (CPU), Python 3.11:
#   before: base 1.0, subclass 2.0
#   after:  base 1.0, subclass 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q kernels==0.17.2 torch==2.13.0
build="$folder/identity/build/torch-universal"
mkdir -p "$build"
cat > "$build/metadata.json" <<'JSON'
{"id": "_identity_0", "name": "identity", "version": 1, "license": "BSD-3-Clause", "python-depends": [], "backend": {"type": "cpu"}}
JSON
cat > "$build/__init__.py" <<'PYTHON'
import types

from torch import nn


class Identity(nn.Module):
    def forward(self, x):
        return x


layers = types.SimpleNamespace(Identity=Identity)
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - "$folder/identity" <<'PYTHON'
import sys
import warnings
from pathlib import Path

import torch
from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping
from torch import nn


@use_kernel_forward_from_hub("Identity")
class Identity(nn.Module):
    def forward(self, x):
        return x


class Doubled(Identity):
    def forward(self, x):
        return 2 * super().forward(x)


def results() -> tuple[float, float]:
    return tuple(layer(torch.ones(())).item() for layer in model)


model = nn.ModuleList([Identity(), Doubled()])
before = results()
repository = LocalLayerRepository(Path(sys.argv[1]), layer_name="Identity")
with use_kernel_mapping({"Identity": {"cpu": repository}}), warnings.catch_warnings():
    warnings.simplefilter("error")
    kernelize(model, mode=Mode.INFERENCE, device="cpu", use_fallback=False)
for when, found in (("before:", before), ("after: ", results())):
    print(when, "base {}, subclass {}".format(*found))
assert (before, results()) == ((1.0, 2.0), (1.0, 1.0)), "the behaviour has changed"
PYTHON
