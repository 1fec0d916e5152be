#!/usr/bin/env bash
# IREE 3.13.0: on a CPU, float8 conversions turn numbers just below the smallest normal number into zeros.
#
# For a CPU, IREE compiles arith.truncf from float32 to float8 into integer operations. According to their source, they round
# to the nearest number, ties to even, and produce denormal numbers. So in f8E4M3FN, one would expect 0.0155 to become 0.015625,
# the smallest normal number. It becomes 0, although 0.0137, which is smaller, stays 0.013671875. The largest denormal number is
# 7/8 of the smallest normal one, and everything that should be rounded up across this gap is lost: a denormal result keeps only
# the bits of its mantissa, and the carry into the exponent is not among them. The gap of f8E5M2 is twice as wide, and the formats
# with the suffix FNUZ behave in the same way.
#
# Seen with iree-base-compiler and iree-base-runtime 3.13.0 (x86-64), ml_dtypes 0.6.0 and numpy 2.4.6, Python 3.11, in units of
# the smallest normal number:
#   x:           [0.8, 0.875, 0.9375, 0.99, 1.0, 1.01]
#   f8E4M3FN:    [0.75, 0.875, 0.0, 0.0, 1.0, 1.0], expected [0.75, 0.875, 1.0, 1.0, 1.0, 1.0]
#   f8E5M2:      [0.75, 0.0, 0.0, 0.0, 1.0, 1.0], expected [0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
#   f8E4M3FNUZ:  [0.75, 0.875, 0.0, 0.0, 1.0, 1.0], expected [0.75, 0.875, 1.0, 1.0, 1.0, 1.0]
#   f8E5M2FNUZ:  [0.75, 0.0, 0.0, 0.0, 1.0, 1.0], expected [0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q \
  iree-base-compiler==3.13.0 iree-base-runtime==3.13.0 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy as np
from iree import compiler, runtime

units = np.array([0.8, 0.875, 0.9375, 0.99, 1.0, 1.01], np.float32)


def convert(x: np.ndarray, name: str) -> np.ndarray:
    code = f"""
        func.func @convert(%x: tensor<{len(x)}xf32>) -> tensor<{len(x)}xi8> {{
            %y = arith.truncf %x : tensor<{len(x)}xf32> to tensor<{len(x)}x{name}>
            %bytes = arith.bitcast %y : tensor<{len(x)}x{name}> to tensor<{len(x)}xi8>
            return %bytes : tensor<{len(x)}xi8>
        }}"""
    options = ["--iree-llvmcpu-target-cpu=generic"]
    binary = compiler.compile_str(code, target_backends=["llvm-cpu"], extra_args=options)
    context = runtime.SystemContext(config=runtime.Config("local-sync"))
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, binary))
    return context.modules.module.convert(x).to_host()


print("x:", [round(value, 4) for value in units.tolist()])
for name in ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ"):
    dtype = getattr(ml_dtypes, f"float8_{name[2:].lower()}")
    smallest = np.float32(ml_dtypes.finfo(dtype).smallest_normal)
    x = units * smallest
    results = convert(x, name).view(dtype), x.astype(dtype)
    found, expected = ((result.astype(np.float32) / smallest).tolist() for result in results)
    print(f"{name}: {found}, expected {expected}")
    assert found == [0.75, 0.875 if "E4" in name else 0, 0, 0, 1, 1], "the behaviour has changed"
PYTHON
