"""opcheck (schema, autograd registration, fake tensors, AOT dispatch with dynamic shapes) of every op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import OPCHECKS
from torch import Tensor, library

import hgemm_ops

hgemm = torch.ops.hgemm


def t(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


SAMPLES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "matmul": [
        ((t(3), t(3)), {}),
        ((t(3), t(3, 4)), {}),
        ((t(2, 5, 3), t(3)), {}),
        ((t(2, 5, 3), t(3, 4)), {}),
        ((t(5, 3), t(2, 3, 4)), {}),
        ((t(2, 1, 5, 3), t(6, 3, 4)), {}),
        ((t(5, 3).mT, t(4, 5).mT), {"variant": -2}),
        ((t(0, 3, grad=False), t(3, 4, grad=False)), {}),
        ((t(5, 3, dtype=torch.bfloat16), t(3, 4, dtype=torch.bfloat16)), {"out_dtype": torch.float32}),
        ((t(5, 3), t(3, 4)), {"float32": 1}),
    ],
    "mm": [((t(5, 3), t(3, 4)), {}), ((t(5, 3, dtype=torch.float16), t(4, 3, dtype=torch.float16).mT), {})],
    "bmm": [((t(2, 5, 3), t(2, 3, 4)), {}), ((t(5, 2, 3).movedim(1, 0), t(2, 4, 3).mT), {"variant": -1})],
    "addmm": [
        ((t(5, 4), t(5, 3), t(3, 4)), {"alpha": 0.5, "beta": 2.0}),
        ((t(4), t(5, 3), t(3, 4)), {}),
        ((t(5, 4), t(5, 3, dtype=torch.bfloat16), t(3, 4, dtype=torch.bfloat16)), {"out_dtype": torch.float32}),
    ],
    "baddbmm": [((t(2, 1, 4), t(2, 5, 3), t(2, 3, 4)), {"beta": 0.5}), ((t(), t(2, 5, 3), t(2, 3, 4)), {})],
    "linear": [
        ((t(5, 3), t(4, 3)), {}),
        ((t(2, 5, 3), t(4, 3), t(4)), {}),
        ((t(3), t(4, 3), t(4), 1), {}),
        ((t(5, 3), t(4, 3), None, 2), {}),
        ((t(2, 5, 3), t(3), None, 3), {}),
        ((t(5, 3, dtype=torch.bfloat16), t(4, 3, dtype=torch.bfloat16), None, 4), {"out_dtype": torch.float32}),
    ],
    "linear_save": [((t(2, 5, 3), t(4, 3), t(4), 2), {}), ((t(5, 3), t(4, 3), None, 1), {"variant": -2})],
    "linear_gated": [
        ((t(5, 3), t(8, 3), 4), {}),
        ((t(2, 5, 3), t(8, 3), 0), {"float32": 1, "numerics": 0}),
        ((t(3, dtype=torch.bfloat16), t(2, 3, dtype=torch.bfloat16), 3), {"variant": -2}),
    ],
    "gate": [((t(5, 8), 4), {}), ((t(1, 6, dtype=torch.bfloat16), 0), {}), ((t(0, 2), 1), {})],
}


@pytest.mark.parametrize(("op", "index"), [(op, i) for op, samples in SAMPLES.items() for i in range(len(samples))])
def test_functional(op: str, index: int) -> None:
    args, options = SAMPLES[op][index]
    library.opcheck(getattr(hgemm, op).default, args, options, test_utils=OPCHECKS)


@pytest.mark.parametrize("op", [op for op in SAMPLES if hasattr(getattr(hgemm, op), "out")])
def test_out(op: str) -> None:
    args, options = SAMPLES[op][0]
    args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
    out = torch.empty_like(getattr(hgemm, op).default(*args, **options))
    library.opcheck(getattr(hgemm, op).out, args, {**options, "out": out}, test_utils=OPCHECKS)


@pytest.mark.parametrize("variant", [v.name for v in hgemm_ops.variants() if v.family not in ("ladder", "int8")])
def test_variant_ops(variant: str) -> None:
    """On a CPU every kernel's op is torch.matmul; where the kernel runs is the GPU tests' matter."""
    op = getattr(hgemm, variant).default
    a, b = t(2, 5, 3), t(3, 4)
    torch.testing.assert_close(op(a, b), a @ b)
    library.opcheck(op, (a, b), test_utils=OPCHECKS)


def test_tags() -> None:
    for op in SAMPLES:
        assert torch.Tag.pt2_compliant_tag in getattr(hgemm, op).default.tags


def test_defining_variants() -> None:
    """What gives each kernel its op, without a library to list kernels."""
    from hgemm_ops.ops import variants

    lib = library.Library("hgemm", "FRAGMENT")
    try:
        variants.define_kernel(lib, "test_first_kernel", 0)
        variants.define_kernel(lib, "test_second_kernel", 1)
        a, b = t(3, 4), t(4, 2)
        torch.testing.assert_close(hgemm.test_second_kernel(a, b), a @ b)
        forwarded = torch.fx.experimental.proxy_tensor.make_fx(hgemm.test_second_kernel)(a.detach(), b.detach())
        calls = [(node.target, node.kwargs) for node in forwarded.graph.nodes if node.op == "call_function"]
        assert calls == [(hgemm.matmul.default, {"variant": 1})]
        library.opcheck(hgemm.test_first_kernel.default, (a, b), test_utils=OPCHECKS)
    finally:
        lib._destroy()
