#!/usr/bin/env bash
# torch 2.13.0: numpy.from_dlpack(z.conj().imag) gives the imaginary parts of z with the wrong sign.
#
# The imaginary part of a conjugate is a view of z that torch negates when it reads it, as it conjugates z.conj(). DLPack can
# describe neither. According to the source of Tensor.__dlpack__, torch refuses to export tensors "that would lose their
# properties", and for z.conj() it does. One would expect the negated values, or an error, as .numpy() raises one. But the
# view is exported without its negative bit, so every library that imports it reads the values of z.imag. torch.from_dlpack,
# within torch, changes the sign as well. z.mH.imag, of a conjugate transpose, is such a view too.
#
# A way around it: tensor.resolve_neg().
#
# Seen with torch 2.13.0 (CPU) and numpy 2.4.6, Python 3.11, for z = [1 + 2j, 3 - 4j]:
#   z.conj().imag:       [-2.0, 4.0]
#   numpy.from_dlpack:   [2.0, -4.0]
#   torch.from_dlpack:   [2.0, -4.0]
#   .numpy():            RuntimeError
#   of z.conj() itself:  BufferError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import torch

z = torch.tensor([1 + 2j, 3 - 4j])
view = z.conj().imag


def outcome(export, tensor) -> str:
    try:
        return str(export(tensor).tolist())
    except (BufferError, RuntimeError) as error:
        return type(error).__name__


assert outcome(np.from_dlpack, view.resolve_neg()) == str(view.tolist())
found = {
    "z.conj().imag": str(view.tolist()),
    "numpy.from_dlpack": outcome(np.from_dlpack, view),
    "torch.from_dlpack": outcome(torch.from_dlpack, view),
    ".numpy()": outcome(torch.Tensor.numpy, view),
    "of z.conj() itself": outcome(np.from_dlpack, z.conj()),
}
for what, result in found.items():
    print(f"{what}: {result}")
right, wrong = str([-2.0, 4.0]), str([2.0, -4.0])
assert [*found.values()] == [right, wrong, wrong, "RuntimeError", "BufferError"], "the behaviour has changed"
PYTHON
