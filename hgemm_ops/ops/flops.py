"""The floating-point operations of the ops, for ``torch.utils.flop_counter.FlopCounterMode``."""

import importlib.util
import math
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from hgemm_ops.ops.schema import NAMESPACE

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
}


_MODULE = "torch.utils.flop_counter"


def register() -> None:
    """Registers the formula of every op, as soon as torch's module is imported.

    It is not imported here, because it imports Triton, which takes a quarter of a second.
    """
    if _MODULE in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from torch.utils.flop_counter import register_flop_formula

    for name, formula in _FORMULAS.items():
        register_flop_formula(getattr(getattr(torch.ops, NAMESPACE), name))(formula)


class _Finder(MetaPathFinder):
    """Finds torch's module as Python would, and registers the formulas after it has run."""

    def find_spec(self, name: str, *others: Any) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module: Any) -> None:
            run(module)
            _register()

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
