"""The report of ``use_custom_gemm()``: which products ran, where, and by which kernel.

While calls are counted nothing is decided here: a ``Call`` keeps what the dispatcher looks at, and the kernel is looked
up when the report is read. The dispatcher is a pure function, so the answer is the one the call got.
"""

from __future__ import annotations

import functools
import math
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hgemm_ops import _library, _native, _tables, _variants
from hgemm_ops._lowering import Lowered

#: Host time of an eager training step for each linear layer that our operators record, in microseconds: in layers of
#: BERT's shape on an H200 machine 290 with torch's gradient, and 150 to 180 more with ours, which is Python. The device
#: waits for the host where products take it less.
HOST_US = 450

#: The site of calls that no line of Python made, while a context was active.
ELSEWHERE = "(compiled graph, backward or other thread)"


@dataclass(frozen=True)
class Operand:
    """What the dispatcher sees of a tensor; ``alignment`` is in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int


@dataclass(frozen=True)
class Call:
    """A call as it was made. ``left`` says why it was torch's; ``a`` is None where that is no matrix product of two."""

    site: str
    op: str
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    a: Operand | None = None
    b: Operand | None = None  # for linear the (n, k) weight
    c: Operand | None = None  # what addmm and baddbmm add
    kind: str = ""  # the operator whose operands these are; ``op`` is the torch function where it was left to torch
    bias: bool = False
    activation: int = 0
    out_dtype: torch.dtype | None = None
    variant: int = _native.AUTO
    left: str = ""


def autocasts(device: str) -> bool:
    return device in ("cuda", "cpu") and torch.is_autocast_enabled(device)


def call_of(site: str, op: str, product: Lowered | None, *, variant: int | None = None, left: str = "") -> Call:
    """What the dispatcher looks at of a product, as it would run now (under autocast, if that is on)."""
    if product is None:
        return Call(site, op, left=left)
    device = product.a.device
    dtype = product.a.dtype
    if dtype is not torch.float64 and autocasts(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return Call(
        site=site,
        op=op,
        dtype=dtype,
        device=device,
        a=_operand(product.a),
        b=_operand(product.b),
        c=None if product.c is None or product.op == "linear" else _operand(product.c),
        kind=product.op,
        bias=product.op == "linear" and product.c is not None,
        activation=product.options.get("act", 0),
        out_dtype=product.options.get("out_dtype"),
        variant=_native.AUTO if variant is None else variant,
        left=left,
    )


def _operand(t: Tensor) -> Operand:
    try:
        address = t.data_ptr()
    except RuntimeError:  # a functorch wrapper, a subclass without storage of its own
        address = int(t.storage_offset()) * t.element_size()
    return Operand(tuple(t.shape), t.stride(), _native.alignment(address))


@dataclass(frozen=True)
class Row:
    """One line: ``batch`` products of (m, k) and (k, n) per call; sizes are 0 for what is not one matrix product.

    ``layout`` says of A and B whether they are stored as they are (N) or transposed (T). ``variant`` is the kernel, or
    "torch"; ``reason`` says why.
    """

    site: str
    op: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    variant: str
    calls: int
    reason: str

    @property
    def flops(self) -> int:
        """Of all calls together."""
        return 2 * self.batch * self.m * self.n * self.k * self.calls


class Report:
    """What happened inside a ``use_custom_gemm()`` context; may be read inside it and after it, at any time."""

    def __init__(self) -> None:
        self._counts: Counter[Call] = Counter()
        # The library's calls while this report was fed: what is counted up, and spans of the counters that are still to
        # be. A context may be entered at every step of a model, and nobody read its report.
        self._native: Counter[_NativeCall] = Counter()
        self._spans: list[tuple[_native.Stats, _native.Stats]] = []
        self._native_start: _native.Stats | None = None
        self._active = 0
        self._collect: Callable[[], None] | None = None  # brings in what the contexts have counted so far

    @property
    def rows(self) -> list[Row]:
        """Every call site, in the order of their first calls; sites, shapes and kernels are not merged."""
        if self._collect is not None:
            self._collect()
        with lock:
            counts = dict(self._counts)
            self._count_spans()
            native = self._native.copy()
            if self._native_start is not None:
                native += _native_calls(_native.Stats()) - _native_calls(self._native_start)
        calls: Counter[Row] = Counter()
        attributed: Counter[_NativeCall] = Counter()
        for call, n in counts.items():
            row, signature = _resolve(call)
            calls[row] += n
            if signature is not None:
                attributed[signature] += n
        for signature, n in _unattributed(native, attributed).items():
            calls[signature.row()] += n
        return [replace(row, calls=n) for row, n in calls.items() if n]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        rows = self.rows
        ours = [row for row in rows if row.variant != "torch"]
        return {
            "rows": [asdict(row) | {"flops": row.flops} for row in rows],
            "calls": _calls(rows),
            "flops": _flops(rows),
            "kernel_calls": _calls(ours),
            "kernel_flops": _flops(ours),
            "torch_calls": _torch_reasons(rows),
        }

    def __str__(self) -> str:
        rows = self.rows
        if not rows:
            why = f": {_library.reason()}" if _library.disabled() else ""
            return f"no matrix products were seen{why}"
        lines = [_Line.of(group) for group in _merge_sizes(_merge_layers(rows))]
        return "\n".join((*_table(lines), "", *_footer(rows)))

    def __repr__(self) -> str:
        with lock:
            return f"<hgemm_ops report: {self._counts.total()} calls of {len(self._counts)} kinds>"

    def _add(self, call: Call, n: int) -> None:
        self._counts[call] += n

    def _start(self) -> None:
        """A context that feeds this report becomes active."""
        with lock:
            self._active += 1
            if self._active == 1 and _library.load():
                if self._native_start is None:
                    now = _native.Stats()
                    _settle_idle(now)
                    self._native_start = now
                _native_counting(+1)

    def _stop(self) -> None:
        global _idle
        with lock:
            self._active -= 1
            if self._active == 0 and self._native_start is not None:
                _native_counting(-1)
                if _native_users:
                    self._settle(_native.Stats())
                else:
                    _idle = weakref.ref(self)

    def _settle(self, now: _native.Stats) -> None:
        if self._native_start is not None:
            self._spans.append((self._native_start, now))
            self._native_start = None
            if len(self._spans) > _MOST_SPANS:
                self._count_spans()

    def _count_spans(self) -> None:
        for start, end in self._spans:
            self._native += _native_calls(end) - _native_calls(start)
        self._spans.clear()


# Guards every report and the native counters' switch: contexts of several threads may feed one report.
lock = threading.Lock()

_MOST_SPANS = 16  # a report keeps

_native_users = 0
# The report that was active last. Nothing is counted while none is, so that entering it again (as a decorator does at
# every call) costs no snapshot of the counters.
_idle: weakref.ref[Report] | None = None


def _native_counting(change: int) -> None:
    global _native_users
    _native_users += change
    _native.lib().hgemm_stats_enable(_native_users > 0)


def _settle_idle(now: _native.Stats) -> None:
    global _idle
    report = None if _idle is None else _idle()
    if report is not None and report._active == 0:
        report._settle(now)
    _idle = None


@dataclass(frozen=True)
class _NativeCall:
    """What tells calls apart in the native counters."""

    dtype: str
    layout: str
    batch: int
    m: int
    n: int
    k: int
    align: int
    ordinal: int
    variant: str

    def size(self) -> _NativeCall:
        """What every call of one site and shape has in common."""
        return replace(self, layout="", align=0, variant="")

    def row(self) -> Row:
        return Row(
            site=ELSEWHERE,
            op="",
            batch=self.batch,
            m=self.m,
            n=self.n,
            k=self.k,
            dtype=self.dtype,
            layout=self.layout,
            variant=self.variant,
            calls=0,
            reason="",
        )


def _native_calls(stats: _native.Stats) -> Counter[_NativeCall]:
    calls: Counter[_NativeCall] = Counter()
    for count in stats.rows():
        call = _NativeCall(
            dtype=_dtype_name(_native.DTYPES[count.dtype]),
            layout=_native.LAYOUTS[count.a_major, count.b_major],
            batch=count.batch,
            m=count.m,
            n=count.n,
            k=count.k,
            align=count.align,
            ordinal=count.ordinal,
            variant=_variants.name_of(count.variant),
        )
        calls[call] += count.calls
    return calls


def _unattributed(native: Counter[_NativeCall], attributed: Counter[_NativeCall]) -> Counter[_NativeCall]:
    """The native calls beyond those that have a call site."""
    rest = native - attributed
    # A site is known by its first call; later ones may have had another layout or alignment, but not another size.
    surplus: Counter[_NativeCall] = Counter()
    for call, n in (attributed - native).items():
        surplus[call.size()] += n
    for call in rest:
        taken = min(rest[call], surplus[call.size()])
        rest[call] -= taken
        surplus[call.size()] -= taken
    return +rest


def _row(call: Call) -> Row:
    """What a call says of its row by itself."""
    batch, m, n, k = (0, 0, 0, 0) if call.a is None or call.b is None else _sizes(call.kind, call.a.sizes, call.b.sizes)
    return Row(
        site=call.site,
        op=call.op,
        batch=batch,
        m=m,
        n=n,
        k=k,
        dtype="" if call.dtype is None else _dtype_name(call.dtype),
        layout="" if call.a is None or call.b is None else _layout(call.kind, call.a, call.b),
        variant="torch",
        calls=0,
        reason=call.left,
    )


def _ask(call: Call) -> _native.Decision | str:
    """The dispatcher's decision, or why it is not asked."""
    if call.left or call.a is None or call.b is None or call.device is None or call.dtype is None:
        return call.left
    if call.device.type != "cuda":
        return f"kernels run on CUDA devices, not on {call.device.type}"
    if not _library.load():
        return f"no native library: {_library.reason()}"
    if call.dtype not in _native.DTYPES:
        return f"dtype {_dtype_name(call.dtype)}"
    batch, m, n, k = _sizes(call.kind, call.a.sizes, call.b.sizes)
    if batch * m * n == 0:
        return "empty result"
    facts = _device_facts(_ordinal(call.device))
    if max(len(call.a.sizes), len(call.b.sizes)) > _native.MAX_DIMS:
        alignment, layout = min(call.a.alignment, call.b.alignment), _layout(call.kind, call.a, call.b)
        query = _variants.matmul_query(m, n, k, call.dtype, layout, facts, batch, alignment)
    else:
        query = _native.Query(
            a=_view(call.a, call.dtype),
            b=_view(call.b, call.dtype),
            c=_native.NO_TENSOR if call.c is None else _view(call.c, call.dtype),
            op=_native.OPS.index(call.kind),
            facts=facts,
        )
    query.has_bias, query.act = call.bias, call.activation
    query.out_dtype = -1 if call.out_dtype is None else _native.DTYPES.index(call.out_dtype)
    query.variant = call.variant
    _tables.ensure()
    decision, _ = _native.explain(query)
    return decision.reason.decode() if decision.variant == _native.UNKNOWN else decision


def _ordinal(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _resolve(call: Call) -> tuple[Row, _NativeCall | None]:
    """The call's row, without its count, and what the native counters know it as (None: they do not see it)."""
    row, decision = _row(call), _ask(call)
    if isinstance(decision, str):
        return replace(row, reason=decision), None
    assert call.device is not None
    layout = _native.LAYOUTS[decision.a_major, decision.b_major]
    sizes = {"batch": decision.batch, "m": decision.m, "n": decision.n, "k": decision.k}
    variant = _variants.name_of(decision.variant)
    reason = f"{_native.SOURCES[decision.source]}: {decision.reason.decode()}"
    return (
        replace(row, **sizes, layout=layout, variant=variant, reason=reason),
        _NativeCall(row.dtype, layout, **sizes, align=decision.align, ordinal=_ordinal(call.device), variant=variant),
    )


def torch_serves(call: Call) -> str:
    """Why an operator's call on a GPU ends in torch's own product; empty where a kernel serves it."""
    if call.device is None or call.device.type != "cuda":
        return ""
    row, decided = _resolve(call)
    return row.reason if row.variant == "torch" and (decided is not None or not _library.load()) else ""


def calls_cublas(call: Call) -> bool:
    """Whether an operator's call that torch serves is a plain product, which the library has a shorter way for
    (``csrc/torch/cublas_gemm.h``)."""
    if call.a is None or call.b is None or call.kind not in ("matmul", "mm", "linear") or not _library.load():
        return False
    is_plain = not (call.bias or call.c or call.activation or call.out_dtype)
    return is_plain and len(call.a.sizes) >= 2 and len(call.b.sizes) == 2 and _native.calls_cublas()


def torch_serves_gradient(call: Call) -> bool:
    """Whether the products of the gradient of a call that torch serves end there, too."""
    products = _gradient_products(call)
    return bool(products) and all(map(torch_serves, products))


def host_is_the_limit(call: Call) -> str:
    """Why eager code gains nothing by an operator's call on a GPU and its gradient, which is Python
    (``ops/autograd.py``): the device waits for the host. Empty where kernels have something to gain."""
    if call.device is None or call.device.type != "cuda":
        return ""
    gradient = _gradient_products(call)
    decisions = [_ask(product) for product in (call, *gradient)]
    us = sum(math.nan if isinstance(decision, str) else decision.torch_us for decision in decisions)
    if not gradient or not us < HOST_US:  # NaN: not decided by time
        return ""
    return f"the host is the limit: with its gradient {us:.3g} us of torch's kernels, less than {HOST_US}"


def why_torch_records(call: Call, why: str) -> tuple[str, bool]:
    """Why torch's function is to run a call whose gradient is wanted (empty: the operator is), and whether that only
    holds outside of CUDA graphs. ``why``: what ``torch_serves`` says of the call."""
    if why and torch_serves_gradient(call):
        return why, False
    limit = host_is_the_limit(call)
    return limit, bool(limit)


def _gradient_products(call: Call) -> list[Call]:
    """What ``ops/autograd.py`` computes for a contiguous gradient; empty where a factor is a vector or broadcast."""
    a, b = call.a, call.b
    if a is None or b is None or call.activation or min(len(a.sizes), len(b.sizes)) < 2:
        return []
    flat = len(b.sizes) == 2  # all rows of a are one product's
    if not flat and a.sizes[:-2] != b.sizes[:-2]:
        return []
    n, k = b.sizes[-2:] if call.kind == "linear" else (b.sizes[-1], b.sizes[-2])
    grad = _contiguous((*a.sizes[:-1], n))
    rows = math.prod(a.sizes[:-1])
    x, dy = (_contiguous((rows, k)) if len(a.sizes) > 2 else a, _contiguous((rows, n))) if flat else (a, grad)
    product = replace(call, kind="matmul", c=None, bias=False, out_dtype=None)
    if call.kind == "linear":
        return [replace(product, a=grad, b=b), replace(product, a=_transposed(dy), b=x)]
    return [replace(product, a=grad, b=_transposed(b)), replace(product, a=_transposed(x), b=dy)]


def _contiguous(sizes: tuple[int, ...]) -> Operand:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return Operand(sizes, tuple(strides), 16)


def _transposed(x: Operand) -> Operand:
    def swap(dims: tuple[int, ...]) -> tuple[int, ...]:
        return (*dims[:-2], dims[-1], dims[-2])

    return Operand(swap(x.sizes), swap(x.strides), x.alignment)


@functools.cache
def _device_facts(ordinal: int) -> _native.Facts:
    return _native.device_facts(ordinal)


def _view(operand: Operand, dtype: torch.dtype) -> _native.Tensor:
    return _native.view(operand.sizes, operand.strides, dtype, operand.alignment)


def _sizes(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, int, int, int]:
    """(batch, m, n, k); rows of a that share one b are rows of one product, as kernels see it."""
    k, n = (b[-1], math.prod(b[:-1])) if op == "linear" else (b[0], 1) if len(b) == 1 else (b[-2], b[-1])
    if op == "linear" or len(b) <= 2:
        return 1, math.prod(a[:-1]), n, k
    batch = torch.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    return math.prod(batch), a[-2] if len(a) > 1 else 1, n, k


def _layout(op: str, a: Operand, b: Operand) -> str:
    row_major_b = _row_major(b)
    return ("N" if _row_major(a) else "T") + ("N" if row_major_b != (op == "linear") else "T")


def _row_major(x: Operand) -> bool:
    # A matrix without a unit stride is copied first, row by row.
    return len(x.sizes) < 2 or x.strides[-1] == 1 or x.strides[-2] != 1


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _calls(rows: Iterable[Row]) -> int:
    return sum(row.calls for row in rows)


def _flops(rows: Iterable[Row]) -> int:
    return sum(row.flops for row in rows)


def _torch_reasons(rows: Iterable[Row]) -> dict[str, int]:
    """Why calls ran through torch -> how many."""
    reasons: Counter[str] = Counter()
    for row in rows:
        if row.variant == "torch":
            reasons[row.reason or "chosen by the dispatcher"] += row.calls
    return dict(reasons.most_common())


# Printing. A group is what becomes one line: rows that differ in layer numbers, then those that differ in sizes.


@dataclass(frozen=True)
class _Group:
    site: str  # the first row's, with the numbers of all in braces
    sites: int
    rows: tuple[Row, ...]


# A part of a dotted name that is a number.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^. ])")


def _merge_layers(rows: Iterable[Row]) -> list[_Group]:
    """Rows equal but for the numbers in a dotted name: ``model.layers.{0-31}.mlp.up_proj``."""
    groups: dict[tuple[str, Row], list[Row]] = {}
    for row in rows:
        template = _NUMBER.sub("#", row.site)
        groups.setdefault((template, replace(row, site="", calls=0)), []).append(row)
    return [_Group(_numbered(template, group), len(group), tuple(group)) for (template, _), group in groups.items()]


def _numbered(template: str, rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return rows[0].site
    columns = zip(*(map(int, _NUMBER.findall(row.site)) for row in rows), strict=True)
    for numbers in columns:
        template = template.replace("#", _ranges(sorted(set(numbers))), 1)
    return template


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "{0-2,5}"."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for x in numbers:
        if runs and x == runs[-1][-1] + 1:
            runs[-1].append(x)
        else:
            runs.append([x])
    return "{" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "}"


#: More shapes of one site than this become one line: a growing cache gives a new one per token.
_MOST_SHAPES = 4


def _merge_sizes(groups: Iterable[_Group]) -> list[_Group]:
    alike: dict[Row, list[_Group]] = {}
    for group in groups:
        key = replace(group.rows[0], site=f"{group.site} {group.sites}", batch=0, m=0, n=0, k=0, calls=0)
        alike.setdefault(key, []).append(group)
    merged: list[_Group] = []
    for same in alike.values():
        if len(same) > _MOST_SHAPES:
            merged.append(_Group(same[0].site, same[0].sites, tuple(row for group in same for row in group.rows)))
        else:
            merged.extend(same)
    return merged


@dataclass(frozen=True)
class _Line:
    """The columns of the printed table."""

    site: str
    op: str
    batch: str
    m: str
    n: str
    k: str
    dtype: str
    layout: str
    variant: str
    calls: str
    reason: str

    @classmethod
    def of(cls, group: _Group) -> _Line:
        first = group.rows[0]
        return cls(
            site=group.site if group.sites == 1 else f"{group.site} \N{MULTIPLICATION SIGN}{group.sites}",
            op=first.op,
            batch=_span(row.batch for row in group.rows),
            m=_span(row.m for row in group.rows),
            n=_span(row.n for row in group.rows),
            k=_span(row.k for row in group.rows),
            dtype=first.dtype,
            layout=first.layout,
            variant=first.variant,
            calls=str(_calls(group.rows)),
            reason=first.reason,
        )

    def cells(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in _COLUMNS)


_COLUMNS = ("site", "op", "batch", "m", "n", "k", "dtype", "layout", "variant", "calls", "reason")
_RIGHT = frozenset(("batch", "m", "n", "k", "calls"))


def _span(sizes: Iterable[int]) -> str:
    distinct = sorted(set(sizes))
    if distinct == [0]:
        return "-"
    return str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]}..{distinct[-1]}"


def _table(lines: Sequence[_Line]) -> list[str]:
    table = [_COLUMNS, *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    columns = list(zip(_COLUMNS, widths, strict=True))
    return ["  ".join(map(_cell, columns, row)).rstrip() for row in table]


def _cell(column: tuple[str, int], text: str) -> str:
    name, width = column
    return text.rjust(width) if name in _RIGHT else text.ljust(width)


def _footer(rows: Sequence[Row]) -> list[str]:
    calls, flops = _calls(rows), _flops(rows)
    ours = [row for row in rows if row.variant != "torch"]
    lines = [_share("our kernels", _calls(ours), calls, _flops(ours), flops)]
    lines.append(_share("torch", calls - _calls(ours), calls, flops - _flops(ours), flops))
    lines.extend(f"  {n} {'call' if n == 1 else 'calls'}: {reason}" for reason, n in _torch_reasons(rows).items())
    return lines


def _share(who: str, calls: int, all_calls: int, flops: int, all_flops: int) -> str:
    share_calls, share_flops = calls / all_calls, flops / all_flops if all_flops else 0.0
    return f"{who}: {calls} of {all_calls} calls ({share_calls:.1%}), {share_flops:.1%} of the FLOPs"
