"""PyTorch's own sample inputs of all its ops and modules: inside use_custom_gemm() what they give outside, gradients
included.

Results with other bits, which are those of products, are held to twice torch's own largest error against float64. A
softmax or a pseudo-inverse magnifies roundings by chance: with products that are rounded once, the best there can be,
the largest error exceeds this limit for 5 samples of 117 of attention, by a factor of up to 2. So where a sample of
such an op exceeds it, more samples of the same shapes are drawn, and the mean over all of them has to be within the
limit. Every sample of every other op has to be. The gradient of cov's weights is not asked for: it is a small
difference of large sums, often 0, and with products rounded once it exceeds the limit for 22 samples of 2,400.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, ON_GPU, calls, share_of_allowed
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map

from hgemm_ops import use_custom_gemm

pytest.importorskip("expecttest", reason="torch's op_db needs expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's ops; they are the same on both sides
]

HALF = [torch.float16, torch.bfloat16]
NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
PRODUCTS = (
    *("matmul", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "inner"),
    *("addmm.decomposed", "nn.functional.linear", "nn.functional.bilinear", "einsum", "tensordot"),
    *("linalg.multi_dot", "linalg.vecdot", "linalg.matrix_power", "linalg.pinv.hermitian", "cov", "corrcoef"),
    *("nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention", "cdist"),
)
#: Why an op is not compared: its name, or the start of it.
EXCLUDED = {
    "empty": "memory that nothing was written to",
    "new_empty": "memory that nothing was written to",
    "torch.ops.aten._efficient_attention_forward": "its seed without dropout is memory that nothing was written to",
    "torch.ops.aten._flash_attention_forward": "the same",
    "resize": "changes the sample, and memory that nothing was written to",
    "nn.functional._scaled_mm": "of float8",
    "_scaled_mm": "of float8",
}
#: An op or a module may have hundreds.
MOST_SAMPLES, MOST_OF_PRODUCTS, MOST_OF_MODULES = 6, 24, 8
#: Modules whose products go through the context.
MODULES = ("nn.Linear", "nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer", "nn.MultiheadAttention")
#: Ops and modules that magnify roundings.
MAGNIFYING = (
    *("nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention"),
    *("linalg.pinv.hermitian", "nn.MultiheadAttention", "nn.Transformer", "nn.TransformerEncoder"),
    *("nn.TransformerEncoderLayer", "nn.TransformerDecoderLayer", "nn.RNN", "nn.GRU", "nn.LSTM"),
)
#: Of these: samples of the same shapes, of which the mean counts where the first one's error is beyond the limit.
DRAWS = 9
#: Times the limit, that no single sample may exceed.
MOST_SHARE = 4

Side = list["Tensor | None"]


def label(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def is_product(op: OpInfo) -> bool:
    return label(op) in PRODUCTS or op.name in PRODUCTS


def pairs(dtypes: list[torch.dtype], wanted: Callable[[OpInfo], bool]) -> list[Any]:
    """The ops with the dtypes that they have here; without a GPU torch knows of the CPU's alone."""
    return [
        pytest.param(op, dtype, id=f"{label(op)}-{NAMES[dtype]}")
        for op in op_db
        if wanted(op) and not label(op).startswith(tuple(EXCLUDED))
        for dtype in dtypes
        if dtype in op.supported_dtypes(DEVICE)
    ]


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def is_plain(x: Tensor) -> bool:
    return x.layout == torch.strided and not x.is_nested and not x.is_quantized


def dense(x: Tensor) -> Tensor:
    x = x.detach().resolve_conj().resolve_neg()
    return x if is_plain(x) else x.to_dense() if not x.is_nested else torch.cat([y.flatten() for y in x.unbind()])


def samples(op: OpInfo, dtype: torch.dtype, grad: bool, seed: int = 0) -> list[SampleInput]:
    """The first of them, for products some from everywhere. A seed has the same in every call; 0 has torch's own."""
    torch.manual_seed(seed)
    found = op.sample_inputs(DEVICE, dtype, requires_grad=grad, set_seed=seed == 0)
    if not is_product(op):
        return list(itertools.islice(found, MOST_SAMPLES))
    every = list(found)
    for sample in every:
        if op.name == "cov" and sample.kwargs.get("aweights") is not None:
            sample.kwargs["aweights"].requires_grad_(False)
    return every[:: -(-len(every) // MOST_OF_PRODUCTS)]


def wide(sample: SampleInput) -> SampleInput:
    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dtype.is_floating_point:
            return x.detach().double().requires_grad_(x.requires_grad)
        return torch.float64 if x in HALF else x

    args = tree_map(leaf, (sample.input, sample.args, sample.kwargs))
    return SampleInput(args[0], args=args[1], kwargs=args[2], output_process_fn_grad=sample.output_process_fn_grad)


def run(op: Callable[..., Any], sample: SampleInput) -> Side:
    """The results, and the gradient of every input that wants one."""
    torch.manual_seed(0)
    out = op(sample.input, *sample.args, **sample.kwargs)
    results: Side = [dense(x) for x in tensors(out)]
    inputs = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    outputs = [x for x in tensors(sample.output_process_fn_grad(out)) if x.requires_grad and is_plain(x)]
    if inputs and outputs:
        seeds = [torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape).to(x.dtype) for x in outputs]
        gradients = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
        results += [None if x is None else dense(x) for x in gradients]
    return results


def attempt(fn: Callable[[], Side]) -> Side | type[Exception]:
    try:
        return fn()
    except Exception as error:
        return type(error)


def equal(ours: Side, theirs: Side) -> bool:
    return all(
        x is y or (x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape and same_bits(x, y))
        for x, y in itertools.zip_longest(ours, theirs)
    )


def same_bits(x: Tensor, y: Tensor) -> bool:
    """NaN equals NaN."""
    both = (x == y) | (x.isnan() & y.isnan()) if x.dtype.is_floating_point or x.is_complex() else x == y
    return bool(both.all())


def compare(fn: Callable[[SampleInput], Side], sample: SampleInput) -> tuple[int, float | None]:
    """Runs it outside, inside and, if it must be, in float64.

    Returns how many products the library saw, and the largest error over what is allowed; None if torch raises.
    """
    __tracebackhide__ = True
    theirs = attempt(lambda: fn(sample))
    with use_custom_gemm() as report:
        ours = attempt(lambda: fn(sample))
    share = 0.0
    if isinstance(ours, type) or isinstance(theirs, type):
        assert ours is theirs, f"{ours} where torch gives {theirs}"
        return 0, None
    if not equal(ours, theirs):
        again = attempt(lambda: fn(sample)) if calls(report) == 0 else theirs
        if isinstance(again, type) or not equal(again, theirs):
            return 0, 0.0  # torch itself gives something else each time, without a product
        exact = attempt(lambda: fn(wide(sample)))
        assert len(ours) == len(theirs)
        for i, (got, other) in enumerate(zip(ours, theirs, strict=True)):
            assert got is not None and other is not None, f"result {i}"
            if isinstance(exact, type) or not other.dtype.is_floating_point:  # no reference
                torch.testing.assert_close(got, other, equal_nan=True)
            else:
                reference = exact[i].to(torch.float64)  # type: ignore[union-attr]
                share = max(share, share_of_allowed(got, other, reference, units=4))
    return calls(report), share


def compare_all(
    draw: Callable[[int], list[SampleInput]], magnifies: bool, *fns: Callable[[SampleInput], Side]
) -> tuple[int, int]:
    """Compares each sample by each of the functions. ``draw`` takes a seed.

    Returns how many products the library saw, and how many results were compared.
    """
    __tracebackhide__ = True
    seen = compared = 0
    for i, sample in enumerate(draw(0)):
        for fn in fns:
            products, share = compare(fn, sample)
            seen += products
            compared += share is not None
            if share is not None and share > 1:
                assert magnifies, f"sample {i}: error {share:.3f} times what is allowed"
                others = [compare(fn, draw(seed)[i])[1] for seed in range(1, DRAWS)]
                shares = [share, *(x for x in others if x is not None)]
                report = f"sample {i}: errors over what is allowed {[round(x, 3) for x in shares]}"
                assert sum(shares) / len(shares) <= 1 and max(shares) <= MOST_SHARE, report
    return seen, compared


def compare_op(op: OpInfo, dtype: torch.dtype, grad: bool, *fns: Callable[[SampleInput], Side]) -> int:
    __tracebackhide__ = True
    return compare_all(lambda seed: samples(op, dtype, grad, seed), label(op) in MAGNIFYING, *fns)[0]


@pytest.mark.parametrize(("op", "dtype"), pairs([*HALF, torch.float32], lambda op: True))
def test_every_op(op: OpInfo, dtype: torch.dtype) -> None:
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes(DEVICE)
    seen = compare_op(op, dtype, grad, lambda sample: run(op, sample))
    assert seen > 0 or op.name not in PRODUCTS[:12] or not ON_GPU, "no sample went through the context"


@pytest.mark.parametrize(("op", "dtype"), pairs(HALF, lambda op: is_product(op) and op.supports_forward_ad))
def test_products_in_forward_mode(op: OpInfo, dtype: torch.dtype) -> None:
    def pushforward(sample: SampleInput) -> Side:
        def dual(x: Any) -> Any:
            return forward_ad.make_dual(x, x.cos()) if isinstance(x, Tensor) and x.dtype.is_floating_point else x

        torch.manual_seed(0)
        with forward_ad.dual_level():
            args = tree_map(dual, (sample.input, sample.args, sample.kwargs))
            pairs = [forward_ad.unpack_dual(x) for x in tensors(op(args[0], *args[1], **args[2]))]
            return [*(dense(p.primal) for p in pairs), *(dense(p.tangent) for p in pairs if p.tangent is not None)]

    compare_op(op, dtype, False, pushforward)


@pytest.mark.parametrize(("op", "dtype"), pairs(HALF, is_product))
def test_products_under_vmap(op: OpInfo, dtype: torch.dtype) -> None:
    """Over all tensors that are numbers, and over the first alone."""

    def mapped(sample: SampleInput, count: int | None) -> Side:
        flat = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.dtype.is_floating_point]
        batched = {id(x): i for i, x in enumerate(flat[:count])}

        def call(*slices: Tensor) -> Any:
            def leaf(x: Any) -> Any:
                return slices[batched[id(x)]] if id(x) in batched else x

            args = tree_map(leaf, (sample.input, sample.args, sample.kwargs))
            return tuple(tensors(op(args[0], *args[1], **args[2])))

        torch.manual_seed(0)
        stacked = [torch.stack([x, x.sin(), x / 2]) for x in flat[:count]]
        return [dense(x) for x in vmap(call, randomness="same")(*stacked)]

    compare_op(op, dtype, False, lambda sample: mapped(sample, None), lambda sample: mapped(sample, 1))


def call_module(state: dict[str, Tensor], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls a module with these parameters and buffers. Those that are given stay as they are."""
    return functional_call(module, {name: x.clone() for name, x in state.items()}, args, kwargs)


def module_samples(info: ModuleInfo, dtype: torch.dtype, training: bool, seed: int) -> list[SampleInput]:
    """Arguments of :func:`call_module`, some from everywhere."""
    torch.manual_seed(seed)
    cases = list(info.module_inputs_func(info, device=DEVICE, dtype=dtype, requires_grad=True, training=training))
    found = []
    for case in cases[:: -(-len(cases) // MOST_OF_MODULES)]:
        made = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs)
        module = made.to(DEVICE, dtype).train(training)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        args = (module, *case.forward_input.args)
        found.append(SampleInput(state, args=args, kwargs=case.forward_input.kwargs))
    return found


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=NAMES.get)
@pytest.mark.parametrize("info", [info for info in module_db if not info.is_lazy], ids=lambda info: info.name)
def test_every_module(info: ModuleInfo, dtype: torch.dtype, training: bool) -> None:
    """A module that is not training is called without gradients too, where torch has other code for some modules."""

    def without_gradients(sample: SampleInput) -> Side:
        with torch.no_grad():
            return run(call_module, sample)

    fns = (lambda sample: run(call_module, sample), *([] if training else [without_gradients]))
    draw = functools.partial(module_samples, info, dtype, training)
    seen, compared = compare_all(draw, info.name in MAGNIFYING, *fns)
    assert compared > 0 or dtype in HALF, "torch gave no result"  # of 16 bits some modules have none
    assert seen > 0 or info.name not in MODULES or not ON_GPU, "no sample went through the context"


@pytest.mark.parametrize("op", [op for op in op_db if is_product(op) and op.error_inputs_func], ids=label)
def test_error_inputs(op: OpInfo) -> None:
    """The inputs for which torch's own tests expect an exception."""
    for case in op.error_inputs(DEVICE):
        sample = case.sample_input
        with pytest.raises(Exception) as theirs:
            op(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(theirs.type) as ours, use_custom_gemm():
            op(sample.input, *sample.args, **sample.kwargs)
        assert str(ours.value) == str(theirs.value)


def test_the_products_are_in_torchs_lists() -> None:
    """A name that torch drops would drop its tests."""
    names = {op.name for op in op_db} | {label(op) for op in op_db} | {info.name for info in module_db}
    assert not (missing := {*PRODUCTS, *MAGNIFYING, *MODULES} - names), missing
    assert len(op_db) > 500 and len(module_db) > 100
