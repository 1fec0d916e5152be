"""The matmuls of hgemm_ops as a kernel for the ``kernels`` library.

    hgemm = kernels.get_local_kernel(Path("dist/hub"))
    y = hgemm.linear(x, weight, bias, activation="gelu")

``build_tools/hub.py`` puts this module in the place of the package's ``__init__.py``. The library imports the package
under the name of the kernel's id, which is the namespace of its ops, too. A process may therefore load several kernels,
and import ``hgemm_ops`` as well.

The kernel has functions and a layer alone. It changes no operator of torch: ``use_custom_gemm()`` and the command
``hgemm`` are the installed package's. It reads the environment variables of the package, but ``HGEMM_OPS_ENABLE`` and
``HGEMM_OPS_LOG``.
"""

from . import _library, _native, _override, _tables, _tuning, _variants, layers
from ._api import linear, matmul
from ._explain import explain
from ._grouped import grouped_mm
from ._variants import variants
from .ops.schema import NAMESPACE

__version__ = "{version}"

__all__ = ["explain", "grouped_mm", "layers", "linear", "matmul", "variants"]

if "_was_imported" not in globals():  # importlib.reload() runs this module again
    _was_imported = True
    if _library.load():
        _native.register_ops(NAMESPACE)
        _native.on_first_use(_tables.ensure)
        _native.on_allocation_failed(_override.allocate_function)
        _native.log()
    _variants.apply_environment()
    _tuning.apply_environment()
