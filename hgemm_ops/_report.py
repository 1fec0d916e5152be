"""The report of ``use_custom_gemm()``: which matmuls ran, and on which kernel.

The library counts the calls (``csrc/dispatch/stats.h``), and keeps of each decision what its reason is made of. Nothing
is done in Python until the report is read. Then one call copies the counts, and a row becomes an object when somebody
looks at it.
"""

import copy
import ctypes
import functools
import heapq
import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, overload

import torch

from . import _files, _native, _override, _sites, _variants
from .ops.activation import ACTIVATIONS

SCHEMA = 1  # the version of the files that Report.save writes


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of matmul, with its calls: ``batch`` matmuls of (m, k) and (k, n) per call.

    Of a grouped matmul ``op`` is "grouped", and ``m`` counts the rows of all groups.

    ``layout`` has one letter each for A and B: N if the matrix is stored as it is, T if its transpose is stored.
    ``variant`` is the kernel, or "torch". ``reason`` says why it was chosen. After 65,536 kinds of matmuls, one row
    counts the calls of all further kinds. Its ``variant`` is "unknown", and its sizes are 0.
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


#: The fields of a row.
_Fields = tuple[str, str, int, int, int, int, str, str, str, int, str]
_COLUMNS = ("site", "op", "batch", "m", "n", "k", "dtype", "layout", "variant", "calls", "reason")
_DTYPES = tuple(map(_native.dtype_name, _native.DTYPES))
_BLOCK = 4096  # how many rows are made at a time


class Rows(Sequence[Row]):
    """The rows of a report as it was when they were asked for, in the order of first calls.

    It is a sequence, equal to a list of the same rows. A row is made when it is looked at, so that rows take little
    memory, however many there are.
    """

    def __init__(self, counts: ctypes.Array[_native.CallCount]) -> None:
        self._counts = counts

    def __len__(self) -> int:
        return len(self._counts)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return Row(*next(self.fields(places, places + 1)))
        return [self[place] for place in places]

    def __iter__(self) -> Iterator[Row]:
        return itertools.starmap(Row, self.fields())

    def fields(self, start: int = 0, end: int | None = None) -> Iterator[_Fields]:
        """Returns the fields of the rows, which come sooner than the rows."""
        end = len(self) if end is None else end
        for first in range(start, end, _BLOCK):
            size = min(_BLOCK, end - first)
            block = (_native.CallCount * size).from_buffer(self._counts, first * ctypes.sizeof(_native.CallCount))
            yield from map(_fields, _native.unpacked(block), _native.reasons(block))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class Report:
    """The matmuls that ran while a ``use_custom_gemm()`` context was active.

    It may be read at any time, inside the context and after it. It counts matmuls of the whole process, including those
    of other threads and other contexts. A copy that is made after the first entry counts on; a pickle has the
    rows as they are when it is made.
    """

    _capsule: Any = None  # of the library's context; None if the override did not start

    def __copy__(self) -> "Report":
        copied = self.__class__.__new__(self.__class__)
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: Any) -> "Report":  # a module that has a context as an attribute may be copied
        return copy.copy(self)

    def __reduce__(self) -> Any:
        return _Pickled, (list(self.rows), list(self._products()), self._remarks())

    @property
    def _context(self) -> _native.Context | None:
        return None if self._capsule is None else _native.Context.of(self._capsule)

    @property
    def rows(self) -> Sequence[Row]:
        """Every kind of matmul, in the order of first calls.

        Rows that differ only in alignment or device are merged.
        """
        return Rows(self.counts(as_shown=True))

    def counts(self, as_shown: bool = False) -> ctypes.Array[_native.CallCount]:
        """Returns the native counters, which have more fields than rows. With ``as_shown`` they are merged as rows."""
        context = self._context
        return (_native.CallCount * 0)() if context is None else context.rows(as_shown)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data, for JSON."""
        rows = list(_fields_of(self.rows))
        return {
            "rows": [dict(zip(_COLUMNS, row, strict=True)) | {"flops": _flops(row)} for row in rows],
            **_totals(rows),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes every kind of matmul, but no grouped or int8 matmul, to a file, as JSON for ``hgemm tune --report``.

        The file is replaced atomically: a reader finds either the old file or the new one. Its content is::

            {"schema": 1,
             "products": [{"dtype": "float16", "out_dtype": …, "layout": "NT", "align": 16, "batch": 1,
                           "m": …, "n": …, "k": …, "calls": …, "variant": …, "source": "table", "left": ""}, …]}

        ``align`` is the least alignment of A, B and the result in bytes. ``left`` says why torch ran the matmul without
        asking the dispatcher, and is empty if it was asked.

        Raises:
            OSError: the file cannot be written.
        """
        products = ",\n".join(map(json.dumps, self._products()))
        text = f'{{"schema": {SCHEMA}, "products": [\n{products}\n]}}\n'
        _files.replace(Path(path), text, f".{os.getpid()}.new")

    def _products(self) -> Iterator[dict[str, Any]]:
        """Returns the entries of the file that ``save`` writes."""
        return (_product(count) for count in self.counts() if _is_tunable(count))

    def _remarks(self) -> tuple[str, list[str]]:
        """Returns why no matmul may have been counted, and a line for each operator that is not."""
        why = _override.reason() or ("" if torch.cuda.is_initialized() else "this process has not used CUDA")
        return why, [f"  not counted, because another package overrides it: {op}" for op in _override.hidden()]

    def __str__(self) -> str:
        rows = list(_fields_of(self.rows))
        why, hidden = self._remarks()
        if not rows:
            return "\n".join(["no matmuls were counted" + (f": {why}" if why else ""), *hidden])
        totals = _totals(rows)
        printed = _most_important(_groups(rows))
        unprinted = _unprinted(len(rows), totals["calls"], totals["flops"], printed)
        return "\n".join((*_table(printed), *unprinted, "", *_footer(totals), *hidden))

    def __repr__(self) -> str:
        return f"<hgemm_ops report: {sum(count.calls for count in self.counts())} calls>"


class _Pickled(Report):
    """A report that has been pickled, maybe by another process. It counts no more."""

    def __init__(self, rows: list[Row], products: list[dict[str, Any]], remarks: tuple[str, list[str]]) -> None:
        self._rows, self._entries, self._said = rows, products, remarks

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    def _products(self) -> Iterator[dict[str, Any]]:
        return iter(self._entries)

    def _remarks(self) -> tuple[str, list[str]]:
        return self._said

    def __repr__(self) -> str:
        return f"<hgemm_ops report: {sum(row.calls for row in self.rows)} calls>"


def _fields(count: tuple[Any, ...], reason: str) -> _Fields:
    """Returns the fields of the row of a counted kind of matmul."""
    batch, m, n, k, site, variant, _, _, dtype, _, a_major, b_major, act, has_bias, has_c, *_, calls = count
    if variant == _native.UNKNOWN:
        return "", "", 0, 0, 0, 0, "", "", _variants.name_of(variant), calls, reason
    return (
        _sites.name_of(site),
        _op(batch > 1, has_bias or has_c, act),
        batch,
        m,
        n,
        k,
        _DTYPES[dtype],
        _native.LAYOUTS[a_major, b_major],
        _variants.name_of(variant),
        calls,
        reason,
    )


def _is_tunable(count: _native.CallCount) -> bool:
    """Returns whether ``hgemm tune`` knows such products."""
    known = count.variant != _native.UNKNOWN
    return known and count.act != _native.GROUPED_ACT and _native.DTYPES[count.dtype] != torch.int8


@functools.cache
def _op(batched: bool, has_addend: int, act: int) -> str:
    if act == _native.GROUPED_ACT:
        return "grouped"
    op = ("baddbmm" if has_addend else "bmm") if batched else ("addmm" if has_addend else "mm")
    return f"{op}+{ACTIVATIONS[act]}" if act else op


def _fields_of(rows: Iterable[Row]) -> Iterator[_Fields]:
    return rows.fields() if isinstance(rows, Rows) else map(attrgetter(*_COLUMNS), rows)


def _flops(row: _Fields) -> int:
    """Returns Row.flops of the row with these fields."""
    _, _, batch, m, n, k, _, _, _, calls, _ = row
    return 2 * batch * m * n * k * calls


def _product(count: _native.CallCount) -> dict[str, Any]:
    """Returns a counted kind of matmul as an entry of the file that ``Report.save`` writes."""
    return {
        "dtype": _DTYPES[count.dtype],
        "out_dtype": _DTYPES[count.out_dtype],
        "layout": _native.LAYOUTS[count.a_major, count.b_major],
        "align": count.align,
        "batch": count.batch,
        "m": count.m,
        "n": count.n,
        "k": count.k,
        "calls": count.calls,
        "variant": _variants.name_of(count.variant),
        "source": _native.SOURCES[count.source],
        "left": _left(count.left),
    }


@functools.cache
def _left(why: int) -> str:
    """Returns why torch ran a matmul without asking the dispatcher, or "" if it was asked."""
    return _native.lib().hgemm_left_reason(why).decode()


def _totals(rows: Iterable[_Fields]) -> dict[str, Any]:
    """Returns the calls and FLOPs of all rows, and of those on our kernels.

    ``torch_calls`` maps each reason for running on torch to its number of calls. ``unknown_calls`` are those that were
    not counted by kernel, and whose FLOPs are not known.
    """
    every, kernels, unknown = [0, 0], [0, 0], 0  # calls and FLOPs
    reasons: defaultdict[str, int] = defaultdict(int)
    for _, _, batch, m, n, k, _, _, variant, calls, reason in rows:
        flops = 2 * batch * m * n * k * calls
        every[0] += calls
        every[1] += flops
        if variant == "torch":
            reasons[reason or "chosen by the dispatcher"] += calls
        elif variant == "unknown":
            unknown += calls
        else:
            kernels[0] += calls
            kernels[1] += flops
    return {
        "calls": every[0],
        "flops": every[1],
        "kernel_calls": kernels[0],
        "kernel_flops": kernels[1],
        "torch_calls": dict(sorted(reasons.items(), key=itemgetter(1), reverse=True)),
        "unknown_calls": unknown,
    }


# Printing. One printed line represents a group of rows.

_Group = list[_Fields]

# Matches a component of a dotted name that is a number.
_NUMBER = re.compile(r"(?<![^.])\d+(?![^. ])")


@functools.lru_cache
def _template(site: str) -> str:
    """Returns the name of a site with # for its numbers."""
    return _NUMBER.sub("#", site)


def _site(group: _Group) -> str:
    """Returns the sites of the rows as one name: the numbers of all in braces, then how many sites there are."""
    sites = list(dict.fromkeys(map(_sites_of, group)))
    if len(sites) == 1:
        return sites[0]
    text = _template(sites[0])
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
#: Of more lines, those with the most FLOPs are printed.
_MOST_LINES = 50
#: Of more reasons for which torch runs matmuls, those with the most calls are printed.
_MOST_REASONS = 10


_sites_of = itemgetter(_COLUMNS.index("site"))
_sizes_of = itemgetter(*(_COLUMNS.index(name) for name in ("batch", "m", "n", "k")))
_kind_of = itemgetter(*(_COLUMNS.index(name) for name in ("op", "dtype", "layout", "variant", "reason")))


def _groups(rows: Iterable[_Fields]) -> list[_Group]:
    """Groups rows that differ only in the numbers of a dotted name, ``model.layers.{0-31}.mlp.up_proj``.

    Of groups that differ only in sizes, those of more than _MOST_SHAPES sizes become one.
    """
    alike: defaultdict[Any, _Group] = defaultdict(list)
    for row in rows:
        alike[_template(row[0]), _kind_of(row)].append(row)
    return list(itertools.chain.from_iterable(map(_by_size, alike.values())))


def _by_size(rows: _Group) -> Iterable[_Group]:
    """Divides rows that differ only in sizes, calls and the numbers of their sites into the groups of _groups()."""
    if len(rows) == 1:
        return [rows]  # most rows are alone, because the predicted times in their reasons differ
    if len(set(map(_sites_of, rows))) == 1 and len(set(map(_sizes_of, rows))) > _MOST_SHAPES:
        return [rows]
    layers: defaultdict[Any, _Group] = defaultdict(list)
    for row in rows:
        layers[_sizes_of(row)].append(row)
    same_site: defaultdict[str, list[_Group]] = defaultdict(list)
    for group in layers.values():
        same_site[_site(group)].append(group)
    merged = ([list(itertools.chain(*same))] if len(same) > _MOST_SHAPES else same for same in same_site.values())
    return itertools.chain.from_iterable(merged)


def _most_important(groups: list[_Group]) -> list[_Group]:
    """Returns the groups that are printed, in their order."""
    if len(groups) <= _MOST_LINES:
        return groups
    flops = [sum(map(_flops, group)) for group in groups]
    return [groups[i] for i in sorted(heapq.nlargest(_MOST_LINES, range(len(groups)), flops.__getitem__))]


_SIZES = frozenset(("batch", "m", "n", "k"))


def _cells(group: _Group) -> tuple[str, ...]:
    """Returns the cells of one printed line."""
    columns = dict(zip(_COLUMNS, zip(*group, strict=True), strict=True))
    texts = {name: _span(values) if name in _SIZES else str(values[0]) for name, values in columns.items()}
    texts |= {"site": _site(group), "calls": str(sum(columns["calls"]))}
    return tuple(texts.values())


def _span(sizes: Iterable[int]) -> str:
    distinct = sorted(set(sizes))
    if distinct == [0]:
        return "-"
    return str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]}..{distinct[-1]}"


def _table(groups: Iterable[_Group]) -> list[str]:
    table = [_COLUMNS, *map(_cells, groups)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    just = [str.rjust if name in _SIZES or name == "calls" else str.ljust for name in _COLUMNS]
    return ["  ".join(f(text, w) for f, text, w in zip(just, row, widths, strict=True)).rstrip() for row in table]


def _unprinted(rows: int, calls: int, flops: int, printed: Iterable[_Group]) -> list[str]:
    """Returns a line about the rows that are not printed, if there are any, of these rows, calls and FLOPs."""
    every = list(itertools.chain(*printed))
    if len(every) == rows:
        return []
    calls -= sum(row[-2] for row in every)
    share = 1 - sum(map(_flops, every)) / flops if flops else 0.0
    return [f"and {rows - len(every)} more kinds (report.rows lists them): {_calls(calls)}, {share:.1%} of the FLOPs"]


def _footer(totals: dict[str, Any]) -> list[str]:
    calls, flops, our_calls, our_flops, reasons, unknown = totals.values()
    lines = []
    if unknown:
        lines.append(f"unknown: {unknown} of {calls} calls ({unknown / calls:.1%}), whose FLOPs do not count here")
    for who, c, f in (("our kernels", our_calls, our_flops), ("torch", calls - our_calls - unknown, flops - our_flops)):
        share = f / flops if flops else 0.0
        lines.append(f"{who}: {c} of {calls} calls ({c / calls:.1%}), {share:.1%} of the FLOPs")
    lines.extend(f"  {_calls(n)}: {reason}" for reason, n in itertools.islice(reasons.items(), _MOST_REASONS))
    others = list(reasons.values())[_MOST_REASONS:]
    if others:
        lines.append(f"  {_calls(sum(others))}: {len(others)} other {'reason' if len(others) == 1 else 'reasons'}")
    return lines


def _calls(n: int) -> str:
    return f"{n} {'call' if n == 1 else 'calls'}"
