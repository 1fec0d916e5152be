"""The operator schemas, with their tags: the one place that says what ``torch.ops.hgemm`` holds.

Implementations are registered elsewhere: CUDA in ``csrc/torch``, every other device in ``aten.py``; fake, autograd,
autocast, vmap and the rest in the files beside this one. Ops exist, and run through torch, even where no shared
library could be built.
"""

from __future__ import annotations

import torch
from torch import library

NAMESPACE = "hgemm"

# Arguments every GEMM op takes: the result's dtype (float32 for half inputs), a forced kernel (an index into
# ``hgemm_ops.variants()``; None or -1 lets the dispatcher choose, -2 is torch's own kernel), and whether the second
# factor (b, mat2, batch2, weight) is static: nothing that the stream still runs when the product starts writes it, so
# that a kernel may read it before the kernels before have ended. What an op makes of its second factor first, a cast or
# a copy, is not static: whoever makes it drops the option.
# NOTE: not `int variant=-1`: AOTInductor passes a keyword-only int that has its default at run time, but leaves it out
# of the arguments it expects. A None is left out by both sides.
_OPTIONS = "ScalarType? out_dtype=None, int? variant=None, bool? static_weights=None"

#: op name -> arguments of its functional overload
SIGNATURES: dict[str, str] = {
    "matmul": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "mm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "bmm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "addmm": f"Tensor input, Tensor mat1, Tensor mat2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "baddbmm": f"Tensor input, Tensor batch1, Tensor batch2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "linear": f"Tensor x, Tensor weight, Tensor? bias=None, int act=0, *, {_OPTIONS}",
}

#: Returns (act(x @ weight.T + bias), the argument of act), for a backward that needs the pre-activation.
LINEAR_SAVE = f"linear_save(Tensor x, Tensor weight, Tensor? bias, int act, *, {_OPTIONS}) -> (Tensor, Tensor)"

#: ``act(gate) * up`` of ``gate, up = (x @ weight.T).chunk(2, -1)``.
LINEAR_GATED = (
    "linear_gated(Tensor x, Tensor weight, int act, *, int? variant=None, bool? static_weights=None) -> Tensor"
)

#: matmul through a kernel that walks the result in panels of ``swizzle_stride`` columns (0: of its own choice).
MATMUL_SWIZZLED = "matmul_swizzled(Tensor a, Tensor b, *, int variant, int swizzle_stride) -> Tensor"

#: The Autograd kernel of an op as an op of its own, for ``csrc/torch/autograd_fast_path.cc``: same arguments.
AUTOGRAD_PREFIX = "_autograd_"

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# NOTE: the `.out` overloads do without torch 2.13's `Tag.out`, which would let inductor plan the buffer: its lowering
# (FallbackKernel.create) passes keyword-only arguments twice and fails on symbolic sizes.


def second_factor(name: str) -> int:
    """The position of the second factor among an op's arguments: what ``static_weights`` speaks of."""
    return 2 if name in ("addmm", "baddbmm") else 1


def define(lib: library.Library) -> None:
    """Defines every op of the package on ``lib``."""
    for name, arguments in SIGNATURES.items():
        lib.define(f"{name}({arguments}) -> Tensor", tags=TAGS)
        lib.define(f"{name}.out({arguments}, Tensor(a!) out) -> Tensor(a!)", tags=TAGS)
        lib.define(f"{AUTOGRAD_PREFIX}{name}({arguments}) -> Tensor", tags=TAGS)
    lib.define(LINEAR_SAVE, tags=TAGS)
    lib.define(LINEAR_GATED, tags=TAGS)
    lib.define(MATMUL_SWIZZLED, tags=TAGS)


def define_variant(lib: library.Library, name: str, swizzles: bool = False) -> None:
    """Defines the op of one kernel, ``hgemm::<name>(a, b)``: torch.matmul through that kernel alone."""
    lib.define(f"{name}(Tensor a, Tensor b{', int swizzle_stride=0' if swizzles else ''}) -> Tensor", tags=TAGS)
