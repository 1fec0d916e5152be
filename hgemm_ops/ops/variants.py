"""One op per floating-point kernel: ``torch.ops.hgemm.<variant>(a, b)`` is torch.matmul on that kernel alone."""

from torch import Tensor, library

from .schema import OPS, TAGS


def define_kernel(lib: library.Library, name: str, variant: int) -> None:
    """Defines the op of the kernel with the id ``variant``.

    It is composite: its gradients, vmap, fake tensors and autocast are those of ``hgemm::matmul``.
    """

    def op(a: Tensor, b: Tensor) -> Tensor:
        return OPS.matmul.default(a, b, variant=variant)

    lib.define(f"{name}(Tensor a, Tensor b) -> Tensor", tags=TAGS)
    lib.impl(name, op, "CompositeImplicitAutograd")
