#!/usr/bin/env bash
# openvino 2026.4.1: QuantizeLinear to 16 bits with a scale of 1 neither rounds nor saturates.
#
# QuantizeLinear of ONNX divides by the scale, rounds to the nearest integer, halves to the even one, and saturates. One
# would expect that a scale of 1 changes none of this. For int16 and uint16 it does: 1.5 becomes 1, 2.7 becomes 2, and
# 70,000 is not saturated. OpenVINO turns the operator into a FakeQuantize, which rounds and saturates, and a conversion.
# With 65,536 levels and a scale of 1 the FakeQuantize is dropped, and the conversion alone cuts off the fraction. A scale
# of 0.5, or 8 bits, gives the results of the definition.
#
# Seen with openvino 2026.4.1 and onnx 1.23.2 on a CPU (x86-64), Python 3.11, for [1.5, 2.7, -1.5, 70000]:
#   int16, scale 1:     [1, 2, -1, 4464], expected [2, 3, -2, 32767]
#   uint16, scale 1:    [1, 2, 65535, 4464], expected [2, 3, 0, 65535]
#   int16, scale 0.5:   [3, 5, -3, 32767], expected [3, 5, -3, 32767]
#   uint16, scale 0.5:  [3, 5, 0, 65535], expected [3, 5, 0, 65535]
#   int8, scale 1:      [2, 3, -2, 127], expected [2, 3, -2, 127]
#   uint8, scale 1:     [2, 3, 0, 255], expected [2, 3, 0, 255]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnx
import openvino
from onnx.reference import ReferenceEvaluator

x = np.array([1.5, 2.7, -1.5, 70000], np.float32)
core = openvino.Core()


def quantize(dtype: str, scale: float) -> tuple[list[int], list[int]]:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[4] x) => ({dtype}[4] y) <float scale = {{{scale}}}, {dtype} zero = {{0}}> {{
            y = QuantizeLinear(x, scale, zero)
        }}""")
    onnx.checker.check_model(model, full_check=True)
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(x / np.float32(scale)), limits.min, limits.max).astype(int).tolist()
    assert ReferenceEvaluator(model).run(None, {"x": x})[0].tolist() == expected
    return compiled(x)[0].tolist(), expected


for bits, scale in ((16, 1.0), (16, 0.5), (8, 1.0)):
    for dtype in (f"int{bits}", f"uint{bits}"):
        found, expected = quantize(dtype, scale)
        print(f"{dtype}, scale {scale:g}: {found}, expected {expected}")
        if (bits, scale) == (16, 1.0):
            assert found[:2] == [1, 2] and found[3] != expected[3], "the behaviour has changed"
        else:
            assert found == expected, "the behaviour has changed"
PYTHON
