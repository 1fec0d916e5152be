"""Drop-in replacement for torch.matmul on hand-written CUDA kernels.

    with hgemm_ops.use_custom_gemm() as report:
        y = model(x)
    print(report)

:func:`enable` does the same for the whole process, and ``HGEMM_OPS_ENABLE=1`` without a line of code.

These environment variables are read when the package is imported:

- ``HGEMM_OPS_DISABLE``: torch runs every op.
- ``HGEMM_OPS_VARIANT``: the kernel to run where neither an argument nor the context manager names one.
- ``HGEMM_OPS_NUMERICS`` and ``HGEMM_OPS_FLOAT32``: the defaults of ``numerics`` and ``float32``.
- ``HGEMM_OPS_TUNE``: whether an untuned shape is timed at its first matmul, where the context manager does not say.
- ``HGEMM_OPS_ENABLE``: whether :func:`enable` is called. ``import torch`` reads it too, and then imports this package.
- ``HGEMM_OPS_REPORT`` and ``HGEMM_OPS_SITES``: with ``HGEMM_OPS_ENABLE``, the file for a report when the process ends,
  ``-`` for stderr, and whether the report names modules.
- ``HGEMM_OPS_LOG``: the level of the logger ``hgemm_ops``. At ``info`` it prints one line for each new decision.

``HGEMM_OPS_CACHE_DIR`` names the directory of measured times and compiled libraries. It is read at each use.
"""

from . import _library, _native, _override, _startup, _tables, _tuning, _variants
from . import nn as nn  # `from .nn import` does not bind it if an import that failed has left the module
from ._api import linear, matmul
from ._context import disable, enable, use_custom_gemm
from ._experts import use_for_experts
from ._explain import Candidate, Explanation, explain
from ._explain_grouped import explain_grouped
from ._grouped import grouped_mm, grouped_mm_gated
from ._report import Report, Row
from ._variants import VariantInfo, variants
from .nn import fuse_projections, linear_gated, unfuse_projections
from .ops import ladder as _ladder
from .ops.flops import flop_formulas
from .ops.schema import NAMESPACE as _NAMESPACE

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Explanation",
    "Report",
    "Row",
    "VariantInfo",
    "disable",
    "enable",
    "explain",
    "explain_grouped",
    "flop_formulas",
    "fuse_projections",
    "grouped_mm",
    "grouped_mm_gated",
    "linear",
    "linear_gated",
    "matmul",
    "unfuse_projections",
    "use_custom_gemm",
    "use_for_experts",
    "variants",
]

# importlib.reload() runs this module again, but what it has registered stays. An import that fails, because a variable
# has a value that is not valid, may be repeated as well: what registers something does so once.
if "_was_imported" not in globals():
    _was_imported = True
    _library.configure_logging()
    if _library.load():
        _native.register_ops(_NAMESPACE)
        _ladder.define_ops()  # first, because it adds kernels to the list that the next line reads
        _variants.define_ops()
        _native.on_first_use(_tables.ensure)
        _native.on_allocation_failed(_override.allocate_function)
        _native.log()
    _variants.apply_environment()
    _tuning.apply_environment()
    _startup.apply_environment()
