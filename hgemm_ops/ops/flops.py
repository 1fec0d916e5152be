"""The floating-point operations of the ops, for ``torch.utils.flop_counter.FlopCounterMode``."""

import math
import sys
from collections.abc import Callable
from typing import Any

from .schema import OPS

Shape = tuple[int, ...]


def _product(a: Shape, b: Shape, *others: Any, out_shape: Shape, **options: Any) -> int:
    return 2 * math.prod(out_shape) * a[-1]


def _sum_with_product(input: Shape, a: Shape, *others: Any, out_shape: Shape, **options: Any) -> int:
    return 2 * math.prod(out_shape) * a[-1]


def _linear_save(x: Shape, *others: Any, out_shape: tuple[Shape, Shape], **options: Any) -> int:
    return 2 * math.prod(out_shape[0]) * x[-1]


def _linear_gated(x: Shape, *others: Any, out_shape: Shape, **options: Any) -> int:
    return 4 * math.prod(out_shape) * x[-1]


def _grouped(a: Shape, b: Shape, *others: Any, out_shape: Shape, **options: Any) -> int:
    """Returns the operations of groups that fill the dimension they lie along. Their ends are on the device."""
    groups = out_shape[0] if len(a) == len(b) == 2 else 1
    return 2 * math.prod(out_shape) * a[-1] // groups if groups else 0


def _grouped_linear(x: Shape, w: Shape, *others: Any, out_shape: Shape, **options: Any) -> int:
    return 2 * x[0] * w[-2] * w[-1]


_FORMULAS: dict[str, Callable[..., int]] = {
    "matmul": _product,
    "mm": _product,
    "bmm": _product,
    "addmm": _sum_with_product,
    "baddbmm": _sum_with_product,
    "linear": _product,
    "linear_save": _linear_save,
    "linear_gated": _linear_gated,
    "grouped_mm": _grouped,
    "grouped_linear": _grouped_linear,
}


_MODULE = "torch.utils.flop_counter"
_registered = False


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """Returns the formula of every op, as ``FlopCounterMode(custom_mapping=hgemm_ops.flop_formulas())`` takes them.

    The counter has them without that where ``torch.utils.flop_counter`` is imported before this package, or before the
    projections or experts of a model are fused. This package does not import it, because it imports Triton, which
    takes longer than the rest of the package.
    """
    return {getattr(OPS, name): formula for name, formula in _FORMULAS.items()}


def register_if_loaded() -> None:
    """Registers the formulas once torch's module has been imported."""
    global _registered
    if _registered or _MODULE not in sys.modules:
        return
    from torch.utils.flop_counter import register_flop_formula

    for op, formula in flop_formulas().items():
        register_flop_formula(op)(formula)
    _registered = True
