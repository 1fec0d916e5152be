#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator subtracts the zero points of MatMulInteger's rows from the columns.
#
# MatMulInteger subtracts the zero points of two quantised matrices and multiplies them. By the operator's definition,
# the first matrix may have one zero point a row, a vector of M elements. One would expect that the reference evaluator,
# which shows what an operator computes, follows the definition. It subtracts the vector as numpy does, which lines it
# up with the columns. So the results are wrong, without an error, if the matrix has as many columns as rows, and
# otherwise it raises an error. QLinearMatMul does the same with zero points and scales.
#
# A way around it: zero points of shape (M, 1).
#
# Seen with onnx 1.23.2 and numpy 2.4.6, Python 3.11, for the rows [11, 11] and [21, 21] with the zero points 10 and 20,
# times the identity, where every result should be 1:
#   zero points of shape [2]:    [[1, -9], [11, 1]]
#   zero points of shape [2, 1]: [[1, 1], [1, 1]]
#   shape [2], three columns:    ValueError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


def product(columns: int, zero_points: np.ndarray) -> str:
    shape = ",".join(map(str, zero_points.shape))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (uint8[2,{columns}] a, uint8[{columns},{columns}] b, uint8[{shape}] zero) => (int32[2,{columns}] y) {{
            y = MatMulInteger(a, b, zero)
        }}""")
    onnx.checker.check_model(model, full_check=True)
    a = np.array([[11] * columns, [21] * columns], np.uint8)
    feeds = {"a": a, "b": np.eye(columns, dtype=np.uint8), "zero": zero_points}
    try:
        return str(ReferenceEvaluator(model).run(None, feeds)[0].tolist())
    except ValueError as error:
        return type(error).__name__


zero_points = np.array([10, 20], np.uint8)
found = product(2, zero_points), product(2, zero_points[:, None]), product(3, zero_points)
for what, result in zip(("zero points of shape [2]", "zero points of shape [2, 1]", "shape [2], three columns"), found):
    print(f"{what}: {result}")
assert found == ("[[1, -9], [11, 1]]", "[[1, 1], [1, 1]]", "ValueError"), "the behaviour has changed"
PYTHON
