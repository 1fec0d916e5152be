"""Triton as torch.compile writes and autotunes it: ``max-autotune-no-cudagraphs`` without ATen's kernels.

Autotuning compiles some twenty kernels for each case, which takes 10 to 30 seconds on 16 cores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import workload
from ..suites import Case
from ..workload import Operands
from . import Call, Unavailable

NO_TEMPLATE = "no template"
_MODE = "max-autotune-no-cudagraphs"


def describe(code: str) -> str:
    """What inductor's code runs: the tile, stages and warps of its template, or that it uses no template."""
    tile = dict(re.findall(r"BLOCK_([MNK])\s*: tl\.constexpr = (\d+)", code))
    if len(tile) < 3:
        return NO_TEMPLATE
    facts = [f"num_{name}={value}" for name, value in dict(re.findall(r"num_(stages|warps)=(\d+)", code)).items()]
    return " ".join([f"{tile['M']}x{tile['N']}x{tile['K']}", *facts])


def compiled(program: Callable[..., Tensor], *operands: Tensor | None) -> tuple[str, Callable[..., Tensor]]:
    """Compiles a program for operands of these shapes. What was compiled before is forgotten.

    Returns:
        What the compiled program runs, in the words of ``describe``, and the compiled program.

    Raises:
        Unavailable: torch.compile fails, or would call ATen.
    """
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    options = {**torch._inductor.list_mode_options(_MODE), "max_autotune_gemm_backends": "TRITON"}
    found: Any = torch.compile(program, fullgraph=True, dynamic=False, options=options)
    try:
        with torch.no_grad():
            _, codes = run_and_get_code(found, *operands)
    except Exception as error:  # the compilers' errors have no common base class
        reason = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"torch.compile failed: {type(error).__name__}: {reason}") from None
    code = "\n".join(codes)
    if re.search(r"extern_kernels\.\w+\(", code):
        raise Unavailable("torch.compile found no Triton kernel and calls ATen's")
    return describe(code), found


class _Compiled:
    def __init__(self, version: str) -> None:
        self.version = version

    def configurations(self, case: Case, operands: Operands) -> Mapping[str, Call]:
        eager = workload.torch_call(case)

        def program(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
            return eager(Operands(a, b, bias))

        name, run = compiled(program, operands.a, operands.b, operands.bias)
        return {name: lambda x: run(x.a, x.b, x.bias)}


def load() -> _Compiled:
    from torch.utils._triton import has_triton

    if not has_triton():
        raise Unavailable("torch.compile finds no Triton for this machine")
    import triton
    from torch._inductor import select_algorithm

    select_algorithm.PRINT_AUTOTUNE = False  # it would print a table for each case into the progress bar
    return _Compiled(f"triton {triton.__version__}, torch {torch.__version__}")
