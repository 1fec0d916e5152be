"""The operator schemas, with their tags: the one place that says what ``torch.ops.hgemm`` holds.

Implementations are registered elsewhere: CUDA in ``csrc/torch``, every other device in ``aten.py``; autograd, autocast,
vmap and the rest in the files beside this one. Ops exist, and run through torch, even where no shared library could be
built.
"""

import torch
from torch import library

NAMESPACE = "hgemm"

# Arguments every GEMM op takes: the result's dtype (float32 for half inputs), and a forced kernel (an index into
# ``hgemm_ops.variants()``; None or -1 lets the dispatcher choose, -2 is torch's own kernel); and numerics (0 fast, 1
# batch_invariant, 2 batch_invariant_or_raise; None or -1 is what the context or the environment says); and float32
# (0 strict, 1 split, None or -1 likewise).
# NOTE: not `int variant=-1`: AOTInductor passes a keyword-only int that has its default at run time, but leaves it out
# of the arguments it expects. A None is left out by both sides.
_CHOICE = "int? variant=None, int? numerics=None, int? float32=None"
_OPTIONS = f"ScalarType? out_dtype=None, {_CHOICE}"

#: op name -> arguments of its functional overload
SIGNATURES: dict[str, str] = {
    "matmul": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "mm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "bmm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "addmm": f"Tensor input, Tensor mat1, Tensor mat2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "baddbmm": f"Tensor input, Tensor batch1, Tensor batch2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "linear": f"Tensor x, Tensor weight, Tensor? bias=None, int act=0, *, {_OPTIONS}",
}

#: op name -> the rest of its schema, for ops without a ``.out`` overload
OTHERS: dict[str, str] = {
    # (act(x @ weight.T + bias), the argument of act), for a backward that needs the latter
    "linear_save": f"(Tensor x, Tensor weight, Tensor? bias, int act, *, {_OPTIONS}) -> (Tensor, Tensor)",
    # act(gate) * up of gate, up = (x @ weight.T).chunk(2, -1)
    "linear_gated": f"(Tensor x, Tensor weight, int act, *, {_CHOICE}) -> Tensor",
}

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# NOTE: the `.out` overloads do without torch 2.13's `Tag.out`, which would let inductor plan the buffer: its lowering
# (FallbackKernel.create) passes keyword-only arguments twice and fails on symbolic sizes.


def define(lib: library.Library) -> None:
    """Defines every op of the package on ``lib``."""
    for name, arguments in SIGNATURES.items():
        lib.define(f"{name}({arguments}) -> Tensor", tags=TAGS)
        lib.define(f"{name}.out({arguments}, Tensor(a!) out) -> Tensor(a!)", tags=TAGS)
    for name, rest in OTHERS.items():
        lib.define(name + rest, tags=TAGS)
