"""The schemas and tags of the operators: the one place that says what ``torch.ops.hgemm`` contains.

The implementations are registered elsewhere: those for CUDA in ``csrc/torch``, those for every other device in
``aten.py``, and autograd, autocast, vmap and the rest in the modules beside this one. The ops exist, and torch computes
them, even where no shared library could be built.
"""

from typing import Any

import torch
from torch import library

_PACKAGE = __name__.partition(".")[0]
#: The namespace of the operators. A kernel for the ``kernels`` library has these modules under another name, which is
#: the namespace of its operators, too (``build_tools/hub.py``).
NAMESPACE = "hgemm" if _PACKAGE == "hgemm_ops" else _PACKAGE
#: The operators, as attributes.
OPS: Any = getattr(torch.ops, NAMESPACE)

# The arguments that every GEMM op takes:
# - out_dtype: the result's dtype. float32 is allowed for 16-bit inputs.
# - variant: a forced kernel, as an index into ``hgemm_ops.variants()``. None or -1 lets the dispatcher choose, -2 is
#   torch's own kernel.
# - numerics: 0 fast, 1 batch_invariant, 2 batch_invariant_or_raise. None or -1 is the default of the context or the
#   environment.
# - float32: 0 strict, 1 split. None or -1 is the default of the context or the environment.
# NOTE: the default is None and not -1, because of AOTInductor. At run time it passes a keyword-only int even if it has
# its default, but it leaves it out of the arguments that it expects. It leaves a None out on both sides.
_CHOICE = "int? variant=None, int? numerics=None, int? float32=None"
_OPTIONS = f"ScalarType? out_dtype=None, {_CHOICE}"

#: The arguments of the functional overload of each op, by name.
SIGNATURES: dict[str, str] = {
    "matmul": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "mm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "bmm": f"Tensor a, Tensor b, *, {_OPTIONS}",
    "addmm": f"Tensor input, Tensor mat1, Tensor mat2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "baddbmm": f"Tensor input, Tensor batch1, Tensor batch2, *, float beta=1.0, float alpha=1.0, {_OPTIONS}",
    "linear": f"Tensor x, Tensor weight, Tensor? bias=None, int act=0, *, {_OPTIONS}",
}

#: The schema behind the name, for ops without a ``.out`` overload.
OTHERS: dict[str, str] = {
    # Returns act(x @ weight.T + bias) and the argument of act, for a backward that needs the argument.
    "linear_save": f"(Tensor x, Tensor weight, Tensor? bias, int act, *, {_OPTIONS}) -> (Tensor, Tensor)",
    # Returns act(gate) * up, with gate, up = (x @ weight.T).chunk(2, -1).
    "linear_gated": f"(Tensor x, Tensor weight, int act, *, {_CHOICE}) -> Tensor",
    # Returns act(gate) * up, with gate, up = both.chunk(2, -1). ``both`` is 2-D; on CUDA it is contiguous.
    "gate": "(Tensor both, int act) -> Tensor",
}

#: The schema of the grouped matmul, which has the forms of ``aten::_grouped_mm``. It is apart from ``OTHERS``, because
#: its kernels for autograd and autocast differ from those of a single matmul.
GROUPED = (
    "grouped_mm(Tensor a, Tensor b, Tensor? offs=None, *, ScalarType? out_dtype=None, int? variant=None) -> Tensor"
)

#: act(y + bias of the row's group) of a grouped matmul y = grouped_mm(x, w, offs) whose groups are rows of x. With
#: ``gated``, act(gate) * up, with gate, up = y.chunk(2, -1), where w has a multiple of 16 columns.
GROUPED_LINEAR = (
    "grouped_linear(Tensor x, Tensor w, Tensor offs, Tensor? bias, int act, bool gated, *, int? variant=None) -> Tensor"
)

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# NOTE: the `.out` overloads do not have torch 2.13's `Tag.out`, which would let inductor plan the buffer. Inductor's
# lowering (FallbackKernel.create) passes keyword-only arguments twice, and fails on symbolic sizes.


def define(lib: library.Library) -> None:
    """Defines every op of the package on ``lib``."""
    for name, arguments in SIGNATURES.items():
        lib.define(f"{name}({arguments}) -> Tensor", tags=TAGS)
        lib.define(f"{name}.out({arguments}, Tensor(a!) out) -> Tensor(a!)", tags=TAGS)
    for name, rest in OTHERS.items():
        lib.define(name + rest, tags=TAGS)
    # The order of the strides is not enough: kernels need rows that start on 16 bytes.
    for schema in (GROUPED, GROUPED_LINEAR):
        lib.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
