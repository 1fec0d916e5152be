"""The report of ``use_custom_gemm()``: which matmuls ran, and on which kernel.

The library counts the calls (``csrc/dispatch/stats.h``). Nothing is done in Python until the report is read. The
counters do not keep the reason of a choice. The report asks the dispatcher for it again, which is possible because a
decision is a pure function of the matmul, the device and the tables.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hgemm_ops import _files, _native, _override, _sites, _variants
from hgemm_ops.ops.activation import ACTIVATIONS

SCHEMA = 1  # the version of the files that Report.save writes


@dataclass(frozen=True)
class Row:
    """One kind of matmul, with its calls: ``batch`` matmuls of (m, k) and (k, n) per call.

    The sizes are 0 where a row is not one kind of matmul. ``layout`` has one letter each for A and B: N if the matrix
    is stored as it is, T if its transpose is stored. ``variant`` is the kernel, or "torch". ``reason`` says why it was
    chosen.
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
        """The floating-point operations of all calls together."""
        return 2 * self.batch * self.m * self.n * self.k * self.calls


class Report:
    """The matmuls that ran while a ``use_custom_gemm()`` context was active.

    It may be read at any time, inside the context and after it. It counts matmuls of the whole process, including those
    of other threads and other contexts.
    """

    _context: _native.Context | None = None  # None if the override did not start

    @property
    def rows(self) -> list[Row]:
        """Every kind of matmul, in the order of first calls.

        Rows that differ only in alignment or device are merged.
        """
        calls: Counter[Row] = Counter()
        for count in self._context.rows() if self._context is not None else ():
            calls[_row(count)] += count.calls
        return [replace(row, calls=n) for row, n in calls.items()]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data, for JSON."""
        rows = self.rows
        return {"rows": [asdict(row) | {"flops": row.flops} for row in rows], **_totals(rows)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes every kind of matmul to a file, as JSON for ``hgemm tune --report``.

        The file is replaced atomically: a reader finds either the old file or the new one. Its content is::

            {"schema": 1,
             "products": [{"dtype": "float16", "out_dtype": …, "layout": "NT", "align": 16, "batch": 1,
                           "m": …, "n": …, "k": …, "calls": …, "variant": …, "source": "table", "left": ""}, …]}

        ``align`` is the least alignment of A, B and the result in bytes. ``left`` says why torch ran the matmul without
        asking the dispatcher, and is empty if it was asked.

        Raises:
            OSError: the file cannot be written.
        """
        products = [_product(count) for count in self._context.rows()] if self._context is not None else []
        text = json.dumps({"schema": SCHEMA, "products": products}, indent=1)
        _files.replace(Path(path), text + "\n", f".{os.getpid()}.new")

    def __str__(self) -> str:
        rows = self.rows
        if not rows:
            why = _override.reason() or ("" if torch.cuda.is_initialized() else "nothing has used CUDA")
            return "no matrix products were seen" + (f": {why}" if why else "")
        return "\n".join((*_table(_merge_sizes(_merge_layers(rows))), "", *_footer(rows)))

    def __repr__(self) -> str:
        return f"<hgemm_ops report: {sum(row.calls for row in self.rows)} calls>"


def _row(count: _native.CallCount) -> Row:
    """Returns a counted kind of matmul as a row, still without its calls."""
    has_addend = bool(count.has_bias or count.has_c)
    op = ("baddbmm" if has_addend else "bmm") if count.batch > 1 else ("addmm" if has_addend else "mm")
    return Row(
        site=_sites.name_of(count.site),
        op=op + (f"+{ACTIVATIONS[count.act]}" if count.act else ""),
        batch=count.batch,
        m=count.m,
        n=count.n,
        k=count.k,
        dtype=_native.dtype_name(_native.DTYPES[count.dtype]),
        layout=_native.LAYOUTS[count.a_major, count.b_major],
        variant=_variants.name_of(count.variant),
        calls=0,
        reason=_reason(count),
    )


def _product(count: _native.CallCount) -> dict[str, Any]:
    """Returns a counted kind of matmul as an entry of the file that ``Report.save`` writes."""
    return {
        **{name: _native.dtype_name(_native.DTYPES[getattr(count, name)]) for name in ("dtype", "out_dtype")},
        "layout": _native.LAYOUTS[count.a_major, count.b_major],
        **{name: getattr(count, name) for name in ("align", "batch", "m", "n", "k", "calls")},
        "variant": _variants.name_of(count.variant),
        "source": _native.SOURCES[count.source],
        "left": _left(count),
    }


def _left(count: _native.CallCount) -> str:
    """Returns why torch ran a matmul without asking the dispatcher, or "" if it was asked."""
    return _native.lib().hgemm_left_reason(count.left).decode()


def _reason(count: _native.CallCount) -> str:
    if count.left:
        return _left(count)
    if not count.batch * count.m * count.n:
        return "nothing to multiply: no kernel runs"
    source = _native.SOURCES[count.source]
    layout, dtype = _native.LAYOUTS[count.a_major, count.b_major], _native.DTYPES[count.dtype]
    facts = _native.device_facts(count.ordinal)
    for align in (16, count.align):  # the counted alignment is the least of A, B and the result: A and B may have more
        query = _variants.matmul_query(count.m, count.n, count.k, dtype, layout, facts, count.batch, align)
        query.has_bias, query.act, query.out_dtype = count.has_bias, count.act, count.out_dtype
        query.numerics, query.float32 = count.numerics, count.float32
        query.variant = count.variant if source == "forced" else _native.AUTO
        decision, _ = _native.explain(query)
        if (decision.variant, decision.align) == (count.variant, count.align):
            return f"{source}: {decision.reason.decode()}"
    return source  # the choice depended on something that is not counted, such as the strides of a batch


def _totals(rows: Iterable[Row]) -> dict[str, Any]:
    """Returns the calls and FLOPs of all rows, and of those on our kernels.

    ``torch_calls`` maps each reason for running on torch to its number of calls.
    """
    totals: Counter[str] = Counter(calls=0, flops=0, kernel_calls=0, kernel_flops=0)
    reasons: Counter[str] = Counter()
    for row in rows:
        totals.update(calls=row.calls, flops=row.flops)
        if row.variant == "torch":
            reasons[row.reason or "chosen by the dispatcher"] += row.calls
        else:
            totals.update(kernel_calls=row.calls, kernel_flops=row.flops)
    return {**totals, "torch_calls": dict(reasons.most_common())}


# Printing. One printed line represents a group of rows: first, rows that differ only in layer numbers are grouped, and
# then groups that differ only in sizes.

# Matches a component of a dotted name that is a number.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^. ])")


def _merge_layers(rows: Iterable[Row]) -> list[list[Row]]:
    """Groups rows that differ only in the numbers of a dotted name: ``model.layers.{0-31}.mlp.up_proj``."""
    groups: dict[tuple[str, Row], list[Row]] = {}
    for row in rows:
        template = _NUMBER.sub("#", row.site)
        groups.setdefault((template, replace(row, site="", calls=0)), []).append(row)
    return list(groups.values())


def _site(group: Iterable[Row]) -> str:
    """Returns the sites of the rows as one name: the numbers of all in braces, then how many sites there are."""
    sites = list(dict.fromkeys(row.site for row in group))
    if len(sites) == 1:
        return sites[0]
    text = _NUMBER.sub("#", sites[0])
    for numbers in zip(*(map(int, _NUMBER.findall(site)) for site in sites), strict=True):
        text = text.replace("#", _ranges(sorted(set(numbers))), 1)
    return f"{text} \N{MULTIPLICATION SIGN}{len(sites)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Formats sorted numbers as ranges: [0, 1, 2, 5] -> "{0-2,5}"."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs = itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ends = ((run[0][1], run[-1][1]) for run in (list(run) for _, run in runs))
    return "{" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ends) + "}"


#: If a site has more shapes than this, one line represents all of them: a growing key-value cache gives a new shape
#: with every token.
_MOST_SHAPES = 4


def _merge_sizes(groups: Iterable[list[Row]]) -> list[list[Row]]:
    alike: dict[Row, list[list[Row]]] = {}
    for group in groups:
        key = replace(group[0], site=_site(group), batch=0, m=0, n=0, k=0, calls=0)
        alike.setdefault(key, []).append(group)
    merged = ([list(itertools.chain(*same))] if len(same) > _MOST_SHAPES else same for same in alike.values())
    return list(itertools.chain(*merged))


_COLUMNS = ("site", "op", "batch", "m", "n", "k", "dtype", "layout", "variant", "calls", "reason")
_SIZES = frozenset(("batch", "m", "n", "k"))


def _cells(group: Sequence[Row]) -> tuple[str, ...]:
    """Returns the cells of one printed line."""
    texts = {name: str(getattr(group[0], name)) for name in _COLUMNS}
    texts |= {name: _span(getattr(row, name) for row in group) for name in _SIZES}
    texts |= {"site": _site(group), "calls": str(sum(row.calls for row in group))}
    return tuple(texts.values())


def _span(sizes: Iterable[int]) -> str:
    distinct = sorted(set(sizes))
    if distinct == [0]:
        return "-"
    return str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]}..{distinct[-1]}"


def _table(groups: Iterable[Sequence[Row]]) -> list[str]:
    table = [_COLUMNS, *map(_cells, groups)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    just = [str.rjust if name in _SIZES or name == "calls" else str.ljust for name in _COLUMNS]
    return ["  ".join(f(text, w) for f, text, w in zip(just, row, widths, strict=True)).rstrip() for row in table]


def _footer(rows: Sequence[Row]) -> list[str]:
    calls, flops, our_calls, our_flops, reasons = _totals(rows).values()
    lines = []
    for who, c, f in (("our kernels", our_calls, our_flops), ("torch", calls - our_calls, flops - our_flops)):
        share = f / flops if flops else 0.0
        lines.append(f"{who}: {c} of {calls} calls ({c / calls:.1%}), {share:.1%} of the FLOPs")
    lines.extend(f"  {n} {'call' if n == 1 else 'calls'}: {reason}" for reason, n in reasons.items())
    return lines
