#!/usr/bin/env bash
# torch 2.13.0: a `with torch.backends.cudnn.flags(...)` that changes no precision leaves TF32 on for CUDA matmuls.
#
# A program allows TF32 by torch.backends.fp32_precision = "tf32", and later forbids it by "ieee". One would expect that
# torch.backends.cuda.matmul.fp32_precision follows, as it does without the block. After a block of cudnn.flags in
# between it stays "tf32": on leaving, the block stores the precision that it read, which was inherited from the
# generic setting, as a setting of the whole CUDA backend, cuBLAS included. No later generic setting has an effect
# there, so float32 matmuls may run in TF32 although the program has asked for IEEE float32.
#
# Seen with torch 2.13.0 (CPU), Python 3.11:
#   without the block: tf32, then ieee
#   with the block:    tf32, then tf32
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0
cat > "$folder/precision.py" <<'PYTHON'
import sys

import torch

torch.backends.fp32_precision = "tf32"
before = torch.backends.cuda.matmul.fp32_precision
if sys.argv[1] == "with":
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        pass
torch.backends.fp32_precision = "ieee"
print(f"{sys.argv[1]} the block: {before}, then {torch.backends.cuda.matmul.fp32_precision}")
PYTHON
without=$("$folder/venv/bin/python" "$folder/precision.py" without)
with=$("$folder/venv/bin/python" "$folder/precision.py" with)
printf '%s\n' "$without" "$with"
[[ $without == "without the block: tf32, then ieee" && $with == "with the block: tf32, then tf32" ]] || {
  echo "the behaviour has changed"
  exit 1
}
