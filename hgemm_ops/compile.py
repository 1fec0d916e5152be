"""torch.compile: a graph pass that moves a compiled model's matrix products, forward and backward, onto hgemm ops.

::

    import hgemm_ops.compile

    compiled = torch.compile(model, options=hgemm_ops.compile.options())

Inductor runs the pass on its post-grad graph, where every product has become ``aten.mm``, ``bmm``, ``addmm`` or
``baddbmm``. The pass gives these to the op of the same name and folds an activation that follows into the epilogue of
``hgemm::linear``, which inductor cannot do across an extern kernel; where the backward needs the activation's argument,
``hgemm::linear_save`` writes both. Nothing global changes: the pass acts on the compiled functions it is given to.

``use_custom_gemm()`` routes a compiled model too. The pass adds the fusion and needs no context at run time.
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
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

import hgemm_ops  # noqa: F401  (registers torch.ops.hgemm)

__all__ = ["GraphPass", "graph_pass", "hgemm_mm", "options"]

aten = torch.ops.aten
hgemm = torch.ops.hgemm

_DTYPES = (torch.float16, torch.bfloat16)
_OPS = {
    aten.mm.default: hgemm.mm.default,
    aten.bmm.default: hgemm.bmm.default,
    aten.addmm.default: hgemm.addmm.default,
    aten.baddbmm.default: hgemm.baddbmm.default,
}
_VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)


def _gelu_new(x: Tensor) -> Tensor:
    """gelu_tanh as transformers spells it for GPT-2 (NewGELUActivation)."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


# The codes of hgemm::linear's `act`, with the spellings of each activation that are recognised.
_ACTIVATIONS: tuple[tuple[int, Callable[[Tensor], Tensor]], ...] = (
    (1, torch.relu),
    (2, F.gelu),
    (3, lambda x: F.gelu(x, approximate="tanh")),
    (3, _gelu_new),
    (4, lambda x: F.silu(x)),
)


class GraphPass(CustomGraphPass):
    """The pass of :func:`graph_pass`.

    ``counts`` says which of our ops the graphs compiled so far hold, by name (``mm``, ``linear``, ``linear_save``, …;
    ``linear+act`` is a linear with a fused activation). A graph that inductor takes from its cache is not counted.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,), self.device)

    def __call__(self, graph: Graph) -> None:
        for target, op in _OPS.items():
            for node in graph.find_nodes(op="call_function", target=target):
                if self._serves(node):
                    _rewrite(graph, node, op)
        _activations().apply(graph)
        graph.eliminate_dead_code()
        self.counts.update(_name(node) for node in graph.nodes if getattr(node.target, "namespace", None) == "hgemm")

    def _serves(self, node: Node) -> bool:
        values = [arg.meta["val"] for arg in node.args if isinstance(arg, Node)]
        dtype = values[0].dtype
        return dtype in _DTYPES and all(v.device.type == self.device and v.dtype == dtype for v in values)


def graph_pass(device: str = "cuda") -> GraphPass:
    """Returns a pass for inductor's ``post_grad_custom_pre_pass`` that rewrites the half products of ``device``."""
    return GraphPass(device)


def options(mode: str | None = None, *, device: str = "cuda") -> dict[str, Any]:
    """Returns ``options`` for torch.compile that add the graph pass.

    ``mode`` takes the place of torch.compile's argument of that name, which torch refuses beside ``options``.
    """
    return {**(list_mode_options(mode) if mode else {}), "post_grad_custom_pre_pass": graph_pass(device)}


def hgemm_mm(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """``hgemm::mm`` as an entry of ``torch._inductor.config.external_matmul``: one more choice in max-autotune's race.

    An alternative to the pass, for who wants inductor to measure. Inductor's graph cache does not carry the choice into
    another process: set ``fx_graph_cache=False`` with it.
    """
    hgemm.mm.out(a, b, out=out)


def _name(node: Node) -> str:
    name = node.target._schema.name.removeprefix("hgemm::")  # type: ignore[union-attr]
    return "linear+act" if name == "linear" and _activation(node) else name


def _activation(linear: Node) -> Any:
    return linear.args[3] if len(linear.args) > 3 else 0


def _rewrite(graph: Graph, node: Node, op: OpOverload) -> None:
    """Points ``node`` at our op. An addmm that adds a bias becomes a linear, which has an epilogue to fuse into."""
    if op is hgemm.addmm.default and not node.kwargs:
        bias, a, b = _nodes(node.args)
        if bias.meta["val"].dim() == 1 and statically_known_true(bias.meta["val"].size(0) == b.meta["val"].size(1)):
            with graph.inserting_before(node):
                node.args = (a, _transpose(graph, b), bias)
            op = hgemm.linear.default
    node.target = op


def _nodes(args: Iterable[Any]) -> Iterator[Node]:
    """``args``, all of which are nodes."""
    for arg in args:
        assert isinstance(arg, Node), arg
        yield arg


def _transpose(graph: Graph, x: Node) -> Node:
    """The transpose of a matrix; the weight itself where ``x`` is the ``weight.t()`` of a linear."""
    if x.target is aten.permute.default and x.args[1] == [1, 0]:
        return next(_nodes(x.args))
    node = graph.call_function(aten.permute.default, (x, [1, 0]))
    node.meta["val"] = x.meta["val"].t()
    return node


@functools.cache
def _activations() -> PatternMatcherPass:
    """Patterns of what inductor's decompositions make of each activation: traced, to follow torch's version."""
    patterns = PatternMatcherPass(pass_name="hgemm_activations")
    for act, fn in _ACTIVATIONS:
        for dtype in _DTYPES:
            with unset_fake_temporarily(), FakeTensorMode():
                traced = fwd_only(fn, [torch.empty(2, 2, dtype=dtype)])
            pattern = fx_to_pattern(traced, argnames=["x"])
            register_graph_pattern(pattern, _follows_product, pass_dict=patterns)(functools.partial(_fuse, act))
    return patterns


def _product(x: Node) -> Node:
    """The node that ``x`` is a view of."""
    while x.target in _VIEWS:
        x = next(_nodes(x.args))
    return x


def _follows_product(match: Match) -> bool:
    product = _product(match.kwargs["x"])
    if product.target is not hgemm.mm.default and (product.target is not hgemm.linear.default or _activation(product)):
        return False
    return next(_nodes(product.args)).meta["val"].dtype in _DTYPES


def _fuse(act: int, match: Match, x: Node) -> None:
    """Gives ``x``, a product or a view of one, the activation that ``match`` found on it."""
    graph, result, product = match.graph, match.output_node(), _product(x)
    with graph.inserting_before(product):
        if product.target is hgemm.mm.default:
            a, b = _nodes(product.args)
            weight, bias = _transpose(graph, b), None
        else:
            (a, weight), bias = _nodes(product.args[:2]), product.args[2] if len(product.args) > 2 else None
        args = (a, weight, bias, act)
        if _read_elsewhere(x, match):
            both = graph.call_function(hgemm.linear_save.default, args, product.kwargs)
            both.meta["val"] = (product.meta["val"], product.meta["val"])
            fused, argument = (_with_value(graph.call_function(operator.getitem, (both, i)), product) for i in (0, 1))
            product.replace_all_uses_with(argument)
        else:
            fused = _with_value(graph.call_function(hgemm.linear.default, args, product.kwargs), product)
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
