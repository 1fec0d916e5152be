"""torch.compile: a graph pass that computes activations in the kernels of the products before them.

::

    import hgemm_ops.compile

    compiled = torch.compile(model, options=hgemm_ops.compile.options())

``use_custom_gemm()`` serves a compiled model's products by itself, whenever it holds, and needs no pass. What it cannot
do is to fuse: inductor fuses nothing into a product that it does not generate. In inductor's post-grad graph the pass
gives a product and the activation behind it to ``hgemm::linear``, or, where the backward needs the activation's
argument, to ``hgemm::linear_save``, which writes both; it does so where the dispatcher has a kernel of ours for the two
together. Nothing global changes: the pass acts on the compiled functions that it is given to.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import list_mode_options
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import Match, PatternMatcherPass, fwd_only, fx_to_pattern, register_graph_pattern
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

import hgemm_ops
from hgemm_ops import _variants
from hgemm_ops.ops.activation import ACTIVATIONS

__all__ = ["GraphPass", "graph_pass", "options"]

aten = torch.ops.aten
hgemm = torch.ops.hgemm

_DTYPES = (torch.float16, torch.bfloat16)
_VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)


def _gelu_new(x: Tensor) -> Tensor:
    """gelu_tanh as transformers spells it for GPT-2 (NewGELUActivation)."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


# The codes of hgemm::linear's `act`, with the spellings of each activation that are recognised.
_SPELLINGS: tuple[tuple[int, Callable[[Tensor], Tensor]], ...] = (
    (1, torch.relu),
    (2, F.gelu),
    (3, lambda x: F.gelu(x, approximate="tanh")),
    (3, _gelu_new),
    (4, lambda x: F.silu(x)),
)


class GraphPass(CustomGraphPass):
    """The pass of :func:`graph_pass`.

    ``counts`` says what the graphs compiled so far hold: ``linear`` and ``linear_save``, with an activation each. A
    graph that inductor takes from its cache is not counted.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()

    def uuid(self) -> bytes:
        schemas = [str(op.default._schema) for op in (hgemm.linear, hgemm.linear_save)]
        return get_hash_for_files(
            (__file__,),
            f"{self.device} {hgemm_ops.__version__} {schemas} {ACTIVATIONS} {_variants.standing_numerics()}",
        )

    def __call__(self, graph: Graph) -> None:
        _patterns(self.device).apply(graph)
        graph.eliminate_dead_code()
        for name, op in (("linear", hgemm.linear.default), ("linear_save", hgemm.linear_save.default)):
            self.counts[name] += len(graph.find_nodes(op="call_function", target=op))
        self.counts = +self.counts


def graph_pass(device: str = "cuda") -> GraphPass:
    """Returns a pass for inductor's ``post_grad_custom_pre_pass`` that fuses the half products of ``device``."""
    return GraphPass(device)


def options(mode: str | None = None, *, device: str = "cuda") -> dict[str, Any]:
    """Returns ``options`` for torch.compile that add the graph pass.

    ``mode`` takes the place of torch.compile's argument of that name, which torch refuses beside ``options``.
    """
    return {**(list_mode_options(mode) if mode else {}), "post_grad_custom_pre_pass": graph_pass(device)}


@functools.cache
def _patterns(device: str) -> PatternMatcherPass:
    """Patterns of what inductor's decompositions make of each activation: traced, to follow torch's version."""
    patterns = PatternMatcherPass(pass_name="hgemm_activations")
    for act, fn in _SPELLINGS:
        for dtype in _DTYPES:
            with unset_fake_temporarily(), FakeTensorMode():
                traced = fwd_only(fn, [torch.empty(2, 2, dtype=dtype)])
            pattern = fx_to_pattern(traced, argnames=["x"])
            check = functools.partial(_gains, device, act)
            register_graph_pattern(pattern, check, pass_dict=patterns)(functools.partial(_fuse, act))
    return patterns


def _nodes(args: Iterable[Any]) -> Iterator[Node]:
    """``args``, all of which are nodes."""
    for arg in args:
        assert isinstance(arg, Node), arg
        yield arg


def _product(x: Node) -> Node:
    """The node that ``x`` is a view of."""
    while x.target in _VIEWS:
        x = next(_nodes(x.args))
    return x


def _factors(product: Node) -> tuple[Node, Node, Node | None] | None:
    """a, b and bias of a product that a linear layer computes; None where it is another node."""
    if product.kwargs:
        return None
    if product.target is aten.mm.default:
        a, b = _nodes(product.args)
        return a, b, None
    if product.target is not aten.addmm.default:
        return None
    bias, a, b = _nodes(product.args)
    is_row = bias.meta["val"].dim() == 1 and statically_known_true(bias.meta["val"].size(0) == b.meta["val"].size(1))
    return (a, b, bias) if is_row else None


def _gains(device: str, act: int, match: Match) -> bool:
    """Whether a kernel of ours serves the product that is matched together with the activation."""
    factors = _factors(_product(match.kwargs["x"]))
    if factors is None:
        return False
    a, b = (node.meta["val"] for node in factors[:2])
    if any(t.device.type != device or t.dtype not in _DTYPES or t.dtype != a.dtype for t in (a, b)):
        return False
    m, k, n = (_hint(size) for size in (*a.shape, b.size(1)))
    explanation = hgemm_ops.explain(
        M=m,
        N=n,
        K=k,
        dtype=a.dtype,
        layout="".join("N" if t.stride(-1) == 1 else "T" for t in (a, b)),
        arch=None if device == "cuda" else "sm_90",
        activation=ACTIVATIONS[act],
        bias=factors[2] is not None,
        # Of the compilation: a fusion that depended on the number of rows would change their bits.
        numerics=_variants.standing_numerics(),
    )
    return explanation.chosen != "torch"


def _hint(size: int | torch.SymInt) -> int:
    """A size, or what it was when the graph was traced."""
    return size if isinstance(size, int) else int(size.node.hint)


def _transpose(graph: Graph, x: Node) -> Node:
    """The transpose of a matrix; the weight itself where ``x`` is the ``weight.t()`` of a linear."""
    if x.target is aten.permute.default and x.args[1] == [1, 0]:
        return next(_nodes(x.args))
    node = graph.call_function(aten.permute.default, (x, [1, 0]))
    node.meta["val"] = x.meta["val"].t()
    return node


def _fuse(act: int, match: Match, x: Node) -> None:
    """Gives ``x``, a product or a view of one, the activation that ``match`` found on it."""
    graph, result, product = match.graph, match.output_node(), _product(x)
    factors = _factors(product)
    assert factors is not None
    a, b, bias = factors
    with graph.inserting_before(product):
        args = (a, _transpose(graph, b), bias, act)
        if _read_elsewhere(x, match):
            both = graph.call_function(hgemm.linear_save.default, args)
            both.meta["val"] = (product.meta["val"], product.meta["val"])
            fused, argument = (_with_value(graph.call_function(operator.getitem, (both, i)), product) for i in (0, 1))
            product.replace_all_uses_with(argument)
        else:
            fused = _with_value(graph.call_function(hgemm.linear.default, args), product)
    if x is not product:
        fused = _with_value(graph.call_function(aten.reshape.default, (fused, x.args[1])), x)
    result.replace_all_uses_with(fused)
    match.erase_nodes()


def _with_value(node: Node, like: Node) -> Node:
    node.meta["val"] = like.meta["val"]
    return node


def _read_elsewhere(x: Node, match: Match) -> bool:
    """Whether anything but the matched activation reads the product that ``x`` views."""
    readers = set(match.nodes)
    while x.users.keys() <= readers:
        if x.target not in _VIEWS:
            return False
        readers, x = {x}, next(_nodes(x.args))
    return True
