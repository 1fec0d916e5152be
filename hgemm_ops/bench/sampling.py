"""The suite ``random``: shapes that are in no tuning table and in no other suite. Each record draws new ones."""

from __future__ import annotations

import functools
import math
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from hgemm_ops import _tables

from . import record, shapes, zoo
from .suites import SUITES, Case

_LAYOUTS = ("NT", "NT", "NT", "NN", "TN", "TT")
_GRANULE = 8  # elements; in a 16-bit type these are 16 bytes, the alignment that every kernel wants
_FEATURES = 64  # the sizes of a model's layers are multiples of this
_RAGGED = 0.06  # share of the shapes that are no multiple of _GRANULE
_BATCHED = 0.06  # share of the shapes
_SIZES = ((1, 12_000), (512, 24_000), (256, 16_000))  # m, n, k
_BATCHED_SIZES = ((1, 2048), (16, 2048), (16, 2048))
_MOST_PRODUCTS = 512  # the largest batch
DRAWS = (
    *("mixed", "whole", "ragged", "logits", "batches"),
    *("float32", "float32-large", "float32-split", "float32-batches", "float64", "float64-large", "float64-batches"),
)
_HALF = ("float16", "bfloat16")
# Kinds of shapes, each with its share, the bounds of m, n and k, and the largest batch. m and n are exchanged in every
# second shape.
_BATCH_KINDS = (
    (0.15, (1, 32), (1, 32), (1, 32), 500_000),  # tiny
    (0.2, (2, 256), (2, 256), (2, 256), 20_000),  # small
    (0.1, (9, 96), (9, 96), (9, 96), 400_000),  # very many small ones
    (0.25, (16, 2048), (16, 2048), (16, 2048), 1024),
    (0.2, (1, 1), (8, 8192), (8, 8192), 8192),  # vectors
    (0.1, (2, 32), (32, 4096), (32, 4096), 1024),  # few rows
)
_FLOAT32_KINDS = (
    (0.25, (2, 4096), (2, 4096), (2, 4096), 1),
    (0.25, (2, 512), (2, 512), (8, 2048), 1),
    (0.2, (2, 512), (2, 512), (2, 1024), 1024),  # batches
    (0.1, (2, 128), (512, 14_000), (256, 14_000), 1),  # few rows
    (0.08, (2, 512), (2, 512), (2048, 131_072), 1),  # long k
    (0.07, (4000, 300_000), (8, 160), (8, 160), 1),  # tall
    (0.05, (500, 6000), (500, 6000), (4, 64), 1),  # short k
)
_FLOAT32_LARGE = ((1.0, (1024, 12_000), (1024, 12_000), (512, 8192), 1),)
_FLOAT32_SPLIT = (  # what kernels over planes may be the fastest for
    (0.35, (128, 8192), (128, 8192), (64, 16_384), 1),
    (0.22, (128, 1536), (128, 1536), (256, 8192), 1),
    (0.15, (64, 768), (64, 768), (2048, 65_536), 1),  # few tiles, long k
    (0.13, (9, 1024), (512, 14_000), (256, 14_000), 1),  # few rows
    (0.1, (64, 1536), (64, 1536), (64, 2048), 256),  # batches
    (0.05, (500, 6000), (500, 6000), (16, 256), 1),  # short k
)
_LOGITS = ((1, 4096), (24_000, 300_000), (512, 8192))  # m, n, k
_VOCABULARY_GRANULES = (1, 8, 64, 64)  # vocabularies are padded, or odd
_FLOAT32_GRANULES = (1, 4, 4, 8, 16, 64)  # elements; 4 are 16 bytes
_BATCH_GRANULES = (1, 1, 2, 4, 8, 8, 16, 64)  # elements; 8 are 16 bytes
_SQUARE, _MOST_SQUARE = 0.2, 256  # the share of square matrices among batches of up to this size
#: Kinds of float32 and float64 shapes, each with the most operations of one. On an H200 5e10 take torch a millisecond.
_FLOAT_DRAWS = {"": (_FLOAT32_KINDS, 5e10), "-large": (_FLOAT32_LARGE, math.inf), "-split": (_FLOAT32_SPLIT, 1e11)}
_MOST_BATCH_FLOPS, _MOST_BATCH_BYTES = 3e11, 5e8  # less than half a millisecond on an H200
# Shapes with few rows, as in decoding. B is a weight, and most weights are stored as (n, k).
_DECODING_LAYOUTS = ("NT", "NT", "NT", "NT", "NN")
_DECODING_SIZES = ((512, 32_000), (512, 20_000))  # n, k

Shape = tuple[int, int, int, int]  # batch, m, n, k
_Bounds = tuple[int, int]
_Kind = tuple[float, _Bounds, _Bounds, _Bounds, int]


def new_seed() -> int:
    return secrets.randbits(31)


@functools.cache
def scored_shapes() -> frozenset[Shape]:
    """(batch, m, n, k) of every matmul of the zoo and of the fixed suites.

    The model must not be fitted to these shapes, because it is scored on them.
    """
    cases = [
        *zoo.models_of(),
        *(case for suite in SUITES.values() for case in suite if case.op in ("matmul", "linear")),
    ]
    return frozenset(map(shape_of, cases))


def shape_of(case: Case) -> Shape:
    return case.batch, case.m, case.n, case.k


def is_scored(case: Case) -> bool:
    """Whether the model must not be fitted to the case.

    These are the scored shapes, and every matrix (n, k) of one of the zoo's models with any number of rows.
    """
    return (case.n, case.k) in zoo.matrices() or shape_of(case) in scored_shapes()


@functools.cache
def shipped_tables() -> tuple[_tables.Table, ...]:
    """The tuning tables that come with the package, without the user's."""
    return tuple(_tables.Table.read(path) for path in sorted(_tables.shipped_dir().glob("*.json")))


def shipped_shapes() -> frozenset[Shape]:
    """(batch, m, n, k) of every entry of the shipped tuning tables."""
    return frozenset((entry.batch, entry.m, entry.n, entry.k) for table in shipped_tables() for entry in table.entries)


def _log_uniform(source: random.Random, low: int, high: int) -> int:
    return round(math.exp(source.uniform(math.log(low), math.log(high))))


def _draw(source: random.Random, rows: int | None = None, kind: str = DRAWS[0]) -> Case:
    """Draws one case with log-uniform sizes.

    n and k, and m where A is stored transposed, are multiples of 8 unless the shape is ragged.

    ``kind`` is "whole" for an m that is a power of two and multiples of 64 for n and k, or "ragged" for a ragged shape.
    """
    layouts, plain = (_LAYOUTS, _SIZES) if rows is None else (_DECODING_LAYOUTS, ((1, rows), *_DECODING_SIZES))
    layout, dtype = source.choice(layouts), source.choice(("float16", "bfloat16"))
    batched = source.random() < (_BATCHED if rows is None else 0)
    sizes = [_log_uniform(source, *bounds) for bounds in (_BATCHED_SIZES if batched else plain)]
    granular = [max(_GRANULE, size // _GRANULE * _GRANULE) for size in sizes]
    strided = [1, 2] if layout[0] == "N" else [0, 1, 2]  # which of m, n and k are row lengths, by index
    for i in strided:
        sizes[i] = granular[i]
    if kind == "whole":
        sizes = [2 ** round(math.log2(sizes[0])), *(max(1, round(size / _FEATURES)) * _FEATURES for size in sizes[1:])]
    elif kind == "ragged" or source.random() < _RAGGED:
        for i in source.sample(strided, source.randint(1, len(strided))):
            sizes[i] += source.randint(1, _GRANULE - 1)
    batch = _log_uniform(source, 2, _MOST_PRODUCTS) if batched else 1
    m, n, k = sizes
    return Case(m, n, k, batch=batch, layout=layout, dtype=dtype)


def _draw_logits(source: random.Random) -> Case:
    """Draws hidden states by the vocabulary of a model, with log-uniform sizes."""
    m, n, k = (_log_uniform(source, *bounds) for bounds in _LOGITS)
    granule = source.choice(_VOCABULARY_GRANULES)
    n, k = round(n / granule) * granule, round(k / _FEATURES) * _FEATURES
    return Case(m, n, k, layout="NT", dtype=source.choice(_HALF))


def _draw_of(kinds: Sequence[_Kind], granules: Sequence[int], source: random.Random, dtype: str) -> Case:
    """Draws one case of one of the kinds. Sizes are log-uniform, and multiples of one granule, unless they are 1."""
    (kind,) = source.choices(kinds, [kind[0] for kind in kinds])
    granule = source.choice(granules)
    m, n, k = (
        1 if bounds == (1, 1) else max(1, round(_log_uniform(source, *bounds) / granule)) * granule
        for bounds in kind[1:4]
    )
    if source.random() < 0.5:
        m, n = n, m
    batch = _log_uniform(source, 2, kind[4]) if kind[4] > 1 else 1
    return Case(m, n, k, batch=batch, layout=source.choice(_LAYOUTS), dtype=dtype)


def _draw_float(source: random.Random, kind: str) -> Case:
    dtype = kind.partition("-")[0]
    kinds, most_flops = _FLOAT_DRAWS[kind.removeprefix(dtype)]
    while True:
        case = _draw_of(kinds, _FLOAT32_GRANULES, source, dtype)
        if case.flops <= most_flops:
            return case


def _draw_batch(source: random.Random, dtypes: Sequence[str]) -> Case:
    while True:
        case = _draw_of(_BATCH_KINDS, _BATCH_GRANULES, source, source.choice(dtypes))
        if max(case.m, case.n, case.k) <= _MOST_SQUARE and source.random() < _SQUARE:
            case = replace(case, n=case.m, k=case.m)
        is_wanted = dtypes == _HALF or min(case.m, case.n) > 1  # no forest serves vectors of other types
        if is_wanted and case.bytes <= _MOST_BATCH_BYTES and case.flops <= _MOST_BATCH_FLOPS:
            return case


def draw(
    seed: int, count: int, excluded: Callable[[Case], bool], rows: int | None = None, kind: str = DRAWS[0]
) -> tuple[Case, ...]:
    """Draws ``count`` different shapes, the same for the same seed.

    Half are NT, the others NN, TN and TT. Half are in float16, half in bfloat16. 6 % are batched, and 6 % are ragged.
    No shape is ``excluded``, or too large for a survey.

    rows: the largest m. With it no shape is batched, and most are NT.
    kind: with "whole", no shape is ragged, m is a power of two, and n and k are multiples of 64, as in models. With
        "ragged", all shapes are ragged. With "logits", all are NT with 24,000 columns or more, a quarter of them with
        any number, as the last layers of language models have. With "batches", all are batched, many of small or odd
        sizes, or of vectors. With "float32", all are in float32, and a fifth are batched; with "float32-large", they
        have M and N of 1,024 and more; with "float32-split", they are those that kernels over planes may be the fastest
        for: a third have M and N of 128 to 8,192, and a tenth are batched; with "float32-batches", they are drawn as
        with "batches", without the vectors. "float64" and so on draw the same kinds in float64.
    """
    source, found = random.Random(seed), dict[Case, None]()
    while len(found) < count:
        if kind.endswith("batches"):
            case = _draw_batch(source, _HALF if kind == "batches" else (kind.partition("-")[0],))
        elif kind == "logits":
            case = _draw_logits(source)
        elif kind.startswith("float"):
            case = _draw_float(source, kind)
        else:
            case = _draw(source, rows, kind)
        if zoo.fits(case) and not excluded(case):
            found[case] = None
    return tuple(found)


@functools.cache
def fitted_shapes() -> frozenset[Shape]:
    """(batch, m, n, k) of all shapes that the model was fitted to.

    The data are in a checkout. Outside of one the set is empty.
    """
    root = record.repository()
    paths = (root / "benchmarks" / "results").glob("*/shapes*.tsv.xz") if root else ()
    return frozenset(shape_of(shape.case) for path in paths for shape in shapes.read(path)[1])


def off_table(seed: int, count: int) -> tuple[Case, ...]:
    """Draws the suite: shapes that are not in the shipped tuning tables, the model's data or another suite."""
    known = scored_shapes() | shipped_shapes() | fitted_shapes()
    return draw(seed, count, lambda case: shape_of(case) in known)


def unscored(seed: int, count: int, rows: int | None = None, kind: str = DRAWS[0]) -> tuple[Case, ...]:
    """Draws shapes to fit the dispatcher's model to. Neither a suite nor the zoo scores them."""
    return draw(seed, count, is_scored, rows, kind)
