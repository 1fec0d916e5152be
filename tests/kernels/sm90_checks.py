"""What the tests of one form of ``sm90_wgmma`` ask of it beside what is special about it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from helpers import (
    ACTIVATIONS,
    GuardedBuffer,
    assert_close_to_torch,
    poisoned_cuda_memory,
    reference_matmul,
    refusal_allowed,
)
from torch import Tensor

from hgemm_ops import VariantInfo
from hgemm_ops.ops import activation

hgemm = torch.ops.hgemm
Factors = tuple[Tensor, Tensor]
#: What check_epilogues checks; the first ones are in every kernel but the swapped ones.
PLAIN = frozenset({"none", "relu", "misaligned"})
EPILOGUES = PLAIN.union(activation.ACTIVATIONS, ("pre_activation", "beta", "float32"))


def rand(rows: int, cols: int, transposed: bool = False, dtype: torch.dtype = torch.float16) -> Tensor:
    x = torch.rand((cols, rows) if transposed else (rows, cols), device="cuda").mul_(2).sub_(1).to(dtype)
    return x.t() if transposed else x


def check_product(variant: VariantInfo, a: Tensor, b: Tensor) -> None:
    with poisoned_cuda_memory():
        out = hgemm.mm(a, b, variant=variant.id)
    exact, magnitude = reference_matmul(a, b)
    assert_close_to_torch(out, exact, a @ b, magnitude=magnitude)


def check_product_in(variant: VariantInfo, a: Tensor, b: Tensor, *, offset: int, row_padding: int) -> None:
    """Into part of a larger tensor, of which nothing else is written."""
    exact, magnitude = reference_matmul(a, b)
    guard = GuardedBuffer(tuple(exact.shape), a.dtype, "cuda", offset=offset, row_padding=row_padding)
    hgemm.matmul.out(a, b, variant=variant.id, out=guard.tensor)
    assert_close_to_torch(guard.tensor, exact, a @ b, magnitude=magnitude)
    guard.check()


def check_epilogues(variant: VariantInfo, a: Tensor, b: Tensor) -> set[str]:
    """Bias and every activation, what an activation is applied to, alpha and beta, float32 results, a misaligned D.

    Returns those that the kernel has; a limited one may refuse some.
    """
    exact, magnitude = reference_matmul(a, b)
    bias, c = rand(1, b.size(1), dtype=a.dtype)[0], rand(*exact.shape, dtype=a.dtype)
    biased, theirs = exact + bias.double(), F.linear(a, b.t(), bias)
    sums = magnitude + bias.double().abs()
    served = set()
    for act, activate in ACTIVATIONS.items():
        with refusal_allowed(variant.id):
            out = hgemm.linear(a, b.t(), bias, act, variant=variant.id)
            assert_close_to_torch(out, activate(biased), activate(theirs), magnitude=sums)
            served.add(activation.ACTIVATIONS[act])
    with refusal_allowed(variant.id):
        out, pre = hgemm.linear_save(a, b.t(), bias, 2, variant=variant.id)
        assert_close_to_torch(pre, biased, theirs, magnitude=sums)
        assert_close_to_torch(out, F.gelu(biased), F.gelu(theirs), magnitude=sums)
        served.add("pre_activation")
    with refusal_allowed(variant.id):
        out = hgemm.addmm(c, a, b, beta=-0.5, alpha=2.0, variant=variant.id)
        theirs = torch.addmm(c, a, b, beta=-0.5, alpha=2.0)
        assert_close_to_torch(out, 2 * exact - c.double() / 2, theirs, magnitude=2 * magnitude + c.double().abs() / 2)
        served.add("beta")
    with refusal_allowed(variant.id):
        out = hgemm.mm(a, b, out_dtype=torch.float32, variant=variant.id)
        theirs = torch.bmm(a[None], b[None], out_dtype=torch.float32)[0]
        assert_close_to_torch(out, exact, theirs, magnitude=magnitude)
        served.add("float32")
    with refusal_allowed(variant.id):
        check_product_in(variant, a, b, offset=65, row_padding=0)
        served.add("misaligned")
    check_product_in(variant, a, b, offset=65, row_padding=5)  # goes through a copy, so that no kernel may refuse it
    return served


def check_equal_bits(variant: VariantInfo, calls: Sequence[Factors], noise: Tensor | None = None) -> None:
    """On two streams at once, forwards and backwards; ``noise`` is multiplied by itself on a third."""
    expected = [hgemm.mm(a, b, variant=variant.id) for a, b in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = []
    for _ in range(20):
        results = []
        for i in range(len(calls)):
            for stream, at in ((streams[0], i), (streams[1], -1 - i)):
                with torch.cuda.stream(stream):
                    results.append((hgemm.mm(*calls[at], variant=variant.id), expected[at]))
            if noise is not None:
                with torch.cuda.stream(streams[2]):
                    noise @ noise
        torch.cuda.synchronize()
        wrong += [tuple(theirs.shape) for ours, theirs in results if not torch.equal(ours, theirs)]
    assert not wrong, f"{len(wrong)} launches differ, of {set(wrong)}"
