"""Fits corrections of the dispatcher's analytic models (``csrc/dispatch/models/learned.h``) to measured shapes.

Run it as ``python benchmarks/fit_model.py --model h200|h100|float32|float64|batches [--check]``. It writes the trees of
that model to ``csrc/dispatch/models/learned_<model>.inc.xz``. It needs no GPU, but numpy and catboost, which nothing
else here needs.

The data are ``results/<gpu>/shapes*.tsv.xz``: thousands of random shapes, each a row with the microseconds of torch and
of kernels. `hgemm tune --random N --output FILE` adds shapes to a file. The files, with the other options of that
command:

- ``shapes``: every kernel that is worth trying.
- ``shapes-leaders``, `--candidates 3`: the kernels that are predicted to be fastest, at nearly three times as many
  shapes a second. Many shapes are needed because torch's time is harder to predict than the times of our kernels.
- ``shapes-whole``, `--candidates 3 --sizes whole`: sizes as the layers of models have them.
- ``shapes-few-rows``, `--rows 24`: matmuls of decoding.
- ``shapes-clusters``: with the kernels in clusters of four and the kernels for few rows in any layout, which the other
  files lack. 2,000 shapes were measured with `--candidates 10`, and 2,400 with `--candidates 4`.
- ``shapes-trimmed``, `--candidates 7`: 4,139 shapes, and 4,739 with `--rows 3000`. The files above were measured when
  the kernels of sm90_wgmma loaded lines beyond the end of an operand, which took long. Their times of these kernels, at
  shapes that have many such lines, count a quarter.
- ``shapes-trimmed-more``, likewise: 3,780 shapes, and 4,549 with `--rows 3000`. Small tiles in clusters of four had
  become some 7 % faster.
- ``shapes-trimmed-kinds``, likewise: 6,578 shapes; 3,078 of `--sizes logits`; 1,931 of `--rows 1 --candidates 12`; 935
  of `--sizes ragged --rows 64 --candidates 9`; 1,515 of `--sizes whole --rows 3000`. Logits had been in no file.
- ``shapes-trimmed-odd``, likewise: 140 logits, and 2,984 for which ``sampling.py`` was set to draw any number of
  columns from 300 on, at most 64 rows, and a K of 256 and more. The kernels of sm90_skinny had become up to twice as
  fast where rows of D are not aligned. Their times of such shapes in the other files count a quarter. The forests of
  the H100 and of batches were fitted before that.
- ``shapes-earlier``: measured before kernels changed, so that each shape counts a quarter. Every second one was kept.
- An H100's ``shapes``, `--candidates 4`, and ``shapes-ragged``, with `--sizes ragged` as well.
- ``shapes-float32``: float32, without `--candidates`. `--sizes float32` gave 2,600 shapes, `--sizes float32-large` the
  others.
- ``shapes-float32-leaders`` and ``shapes-float32-batches``, `--candidates 7`: `--sizes float32` and `float32-batches`.
- ``shapes-float32-earlier``: 4,691 more, measured before the kernels of sm90_dmma became faster. Their times of these
  kernels have been taken out, so that the shapes teach what torch takes, and the other kernels.
- A file measured with `--float32 split` says so in its first line. It has the times of the kernels that split float32
  beside those of the others. `--sizes float32-split` draws shapes for it.
- ``shapes-float64``, `--candidates 8`: `--sizes float64`, `float64-batches` and `float64-large`.
- ``shapes-batches``, `--candidates 8 --sizes batches`: batches of 16-bit matrices, many of them tiny, odd, or of
  vectors. There was no model for the first 14,824, so analytic predictions named the candidates. For the others
  ``sampling.py`` was set to draw what the first ones had few of: 2,777 batches of up to 400,000 matrices, with M, N and
  K of 9 to 96; 2,000 of multiples of 8 up to 192; and 1,300 of square matrices up to 200.
- ``shapes-batches-trimmed``, `--candidates 8 --sizes batches`: 7,727 batches, for the reason of ``shapes-trimmed``.

There are five models:

- The H200's, of 16-bit types, is fitted to the H200's files. It serves matmuls that are not batched, although some of
  its shapes are.
- That of float32 is fitted to an H200's files, and serves all chips of its compute capability whose float64 is as
  fast. An H100 SXM has as many SMs at the same clock; on no other chip have float32 shapes been measured. Where float32
  may be split, the same forests correct the kernels of more families, and predict the same time of torch.
- That of float64 is fitted to an H200's file, and serves the same chips.
- That of batches of 16-bit types is fitted to an H200's file, and serves the same chips as that of float32. An operand
  that all matrices share is in no file, and the model knows no such batches.
- The H100's, of 16-bit types, is fitted to both GPUs' files, in which a shape of the H200 counts half. The 7,000 shapes
  of the H100 alone are too few, and the GPUs differ in little but the memory's speed, which is a feature. What the
  third forest says counts for more in the margin than on the H200 (``DOUBTED``), because torch's time is predicted less
  well, and because some of the H100's times are of kernels that are faster now.

Shapes of the suites and of the zoo are left out, because the model must not be fitted to what it is scored on.

The corrections are forests of oblivious trees. A prediction is multiplied by two to the power of a forest's output:

- The forest of the kernels has one row for each kernel and shape. Its features describe a kernel (tile, cluster, ...)
  and do not name it, so that a new kernel needs no new fit. Kernels that split float32 have a forest of their own,
  so that the other kernels are corrected as if there were none.
- The forest of torch has the best learned time of our kernels among its features, without those that split float32.
  For the fit, this time comes from a forest that has not seen the shape.
- The third forest learns how far the ratio of the two is off, from shapes that neither of them has seen. A kernel has
  to be faster than torch by a margin that grows with this error.

``--check`` scores the choice by cross-validation: four times, on the quarter of the shapes that the fit has not seen.
The shapes of each GPU are scored by themselves.
"""

from __future__ import annotations

import ctypes
import json
import lzma
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from catboost import CatBoostRegressor

from hgemm_ops import _native, _variants
from hgemm_ops.bench import shapes as measured_shapes
from hgemm_ops.bench.sampling import scored_shapes, shape_of
from hgemm_ops.bench.suites import Case

_H200 = {
    "h200/shapes": 1.0,
    "h200/shapes-leaders": 1.0,
    "h200/shapes-whole": 1.0,
    "h200/shapes-few-rows": 1.0,
    "h200/shapes-clusters": 1.0,
    "h200/shapes-trimmed": 1.0,
    "h200/shapes-trimmed-more": 1.0,
    "h200/shapes-trimmed-kinds": 1.0,
    "h200/shapes-trimmed-odd": 1.0,
    "h200/shapes-earlier": 0.25,
}
_H200_FACTS = {"sm_count": 132, "l2_bytes": 62914560, "dram_gbs": 4814}
#: These are not for the H100's model: on its own shapes it then had 0.85 % of the choices below 0.97 of torch's speed.
_NOT_FOR_H100 = ("h200/shapes-trimmed-kinds", "h200/shapes-trimmed-odd")
_H100 = {"h100-80gb-hbm3/shapes": 1.0, "h100-80gb-hbm3/shapes-ragged": 1.0}
OTHERS = 0.5  # times the weight of a shape of another chip
#: The weight of each file's shapes, for each model.
WEIGHTS = {
    "h200": _H200,
    "h100": {n: weight * OTHERS for n, weight in _H200.items() if n not in _NOT_FOR_H100} | _H100,
    "float32": {
        "h200/shapes-float32": 1.0,
        "h200/shapes-float32-leaders": 1.0,
        "h200/shapes-float32-batches": 1.0,
        "h200/shapes-float32-earlier": 1.0,
        "h200/shapes-float32-split": 1.0,
    },
    "float64": {"h200/shapes-float64": 1.0},
    "batches": {"h200/shapes-batches": 1.0, "h200/shapes-batches-trimmed": 1.0},
}
RESULTS = Path(__file__).parent / "results"
MODELS = Path(__file__).parents[1] / "csrc" / "dispatch" / "models"
TORCH = "torch"
#: learned.h's kShapeFeatures: the index of the first feature of a kernel or of torch, log2 of its predicted time.
PREDICTED = 20
FAMILY = PREDICTED + 18  #: the index of learned.h's learned_code() among the features of a kernel
UNIT, MOST = 4096, 127  # leaves are integers, at most MOST, in units of 2^shift / UNIT
BORDERS = 127  # of a feature, at most
#: learned.h's constants
MOST_TREES, MOST_OWN_QUESTIONS, MOST_DEPTH, TOGETHER, LANES, PIVOTS, NEVER, PADDING = 1280, 1024, 7, 32, 8, 16, 127, 16
MARGIN = 1.02  #: kLearnedMargin of csrc/dispatch/estimates.cc
DOUBTED = {"h200": 0.4, "h100": 0.9, "float32": 1.4, "float64": 1.0, "batches": 1.1}  # learned.h's Learned::doubted
#: The families that the models of these dtypes correct, and those that the model of float32 corrects beside them where
#: float32 may be split. Each model learns those that its data have LEAST_TIMES of (learned.h's Learned::families).
LEARNED_FAMILIES = {
    "float32": ("sm90_dmma", "simt_skinny", "simt_gemv", "tiny_batch"),
    "float64": ("sm90_dmma", "tiny_batch"),
}
LEAST_TIMES = 20
SPLIT_FAMILIES = ("sm90_split", "sm90_split_skinny", "sm80_split")
#: This file has no times of the kernels of sm90_dmma. Where these can run a shape, the fastest is not known.
WITHOUT_DMMA = "h200/shapes-float32-earlier"
#: The files that were measured when the kernels of sm90_wgmma loaded lines beyond the end of an operand. Their times of
#: these kernels have the weight OUTDATED if more than the share MOST_BEYOND of the tiles lay beyond.
UNTRIMMED = {name for name in (*_H200, *_H100) if "-trimmed" not in name} | {"h200/shapes-batches"}
MOST_BEYOND, OUTDATED = 0.05, 0.25
#: The files that were measured since adjacent lanes of sm90_skinny store adjacent elements where rows of D are not
#: aligned. In the other files, the times of these kernels have the weight OUTDATED where D has more than FEW_LINES rows
#: and columns.
IN_LINES, FEW_LINES = {"h200/shapes-trimmed-odd"}, 4
FOLDS = 4


@dataclass(frozen=True)
class Settings:
    """CatBoost's settings of the forests."""

    kernels: dict[str, Any]
    torch: dict[str, Any]
    doubt: dict[str, Any]
    planes: dict[str, Any] = field(default_factory=dict)


# More trees would still help, but a decision should take at most 20 us, and the library should stay small (13.4 MB).
_HALF = Settings(
    kernels={"depth": 7, "iterations": 700, "learning_rate": 0.17, "l2_leaf_reg": 1},
    torch={"depth": 6, "iterations": 1200, "learning_rate": 0.1, "l2_leaf_reg": 3},
    doubt={"depth": 6, "iterations": 200, "learning_rate": 0.05, "l2_leaf_reg": 5},
)
_FLOAT32 = Settings(
    kernels={"depth": 7, "iterations": 700, "learning_rate": 0.15, "l2_leaf_reg": 1},
    torch={"depth": 7, "iterations": 1270, "learning_rate": 0.11, "l2_leaf_reg": 2},
    doubt={"depth": 6, "iterations": 200, "learning_rate": 0.05, "l2_leaf_reg": 5},
    planes={"depth": 7, "iterations": 400, "learning_rate": 0.15, "l2_leaf_reg": 1},
)
_FLOAT64 = Settings(
    kernels={"depth": 7, "iterations": 400, "learning_rate": 0.2, "l2_leaf_reg": 1},
    torch={"depth": 7, "iterations": 700, "learning_rate": 0.11, "l2_leaf_reg": 2},
    doubt={"depth": 6, "iterations": 200, "learning_rate": 0.05, "l2_leaf_reg": 5},
)
_BATCHES = Settings(
    kernels={"depth": 7, "iterations": 1000, "learning_rate": 0.15, "l2_leaf_reg": 1},
    torch={"depth": 7, "iterations": 1270, "learning_rate": 0.1, "l2_leaf_reg": 2},
    doubt={"depth": 6, "iterations": 200, "learning_rate": 0.05, "l2_leaf_reg": 5},
)
SETTINGS = {"h200": _HALF, "h100": _HALF, "float32": _FLOAT32, "float64": _FLOAT64, "batches": _BATCHES}


@dataclass
class Shape:
    """A shape and its times.

    us: the measured microseconds, of torch and of kernels.
    predicted: the predictions of the analytic models, for torch and for all kernels that may be the fastest. Where
        float32 may be split, also for the kernels that may be the fastest of those that do not split it.
    is_known: whether the fastest kernel is among those that were timed.
    outdated: kernels that are faster now.
    """

    kind: str
    case: Case
    weight: float
    us: dict[str, float]
    query: _native.Query
    predicted: dict[str, float]
    is_known: bool
    outdated: set[str]


def features(query: _native.Query, variant: int, best_us: float = 0.0) -> list[float]:
    values = (ctypes.c_float * 128)()
    count = _native.lib().hgemm_features(query, variant, best_us, values, len(values))
    if count < 0:
        raise RuntimeError(_native.lib().hgemm_last_error().decode())
    return list(values[:count])


def facts_of(head: dict[str, Any]) -> _native.Facts:
    """The facts of the GPU that a file's shapes were measured on.

    The earliest files lack them. They are of an H200 as those of the later files. A bandwidth of their own would be a
    feature that tells old times from new ones.
    """
    facts = _native.preset_facts(90)
    for name, of_h200 in _H200_FACTS.items():
        setattr(facts, name, head.get(name, of_h200))
    return facts


def reach(best_us: float) -> float:
    """learned.cc's learned_reach()."""
    return 2.2 if best_us < 100 else 1.6 if best_us < 400 else 1.3


def loads_beyond(kernel: str, case: Case) -> bool:
    """Whether much of the kernel's tiles lies beyond the end of K-major operands. Clusters do not count."""
    tile = _native.variant_infos()[_variants.ids()[kernel]].tile
    rows, columns = (tile[1], tile[0]) if "_swapped" in kernel else (tile[0], tile[1])
    share = 1.0
    if case.layout[0] == "N":
        share *= -(-case.m // rows) * rows / case.m
    if case.layout[1] == "T":
        share *= -(-case.n // columns) * columns / case.n
    return share > 1 + MOST_BEYOND


def is_outdated(name: str, kernel: str, case: Case) -> bool:
    """Whether the kernel may be much faster now than when this file was measured."""
    if kernel.startswith("skinny_wgmma"):
        return name not in IN_LINES and case.n % 8 != 0 and min(case.m, case.n) > FEW_LINES
    return name in UNTRIMMED and kernel.startswith("sm90_wgmma") and loads_beyond(kernel, case)


def read(weights: Mapping[str, float]) -> tuple[dict[str, Any], list[Shape]]:
    """Reads the files of a model's data, which have these weights.

    Returns:
        The names of the GPUs and the number of shapes in all files; and the shapes that are not scored, with the
        predictions of the analytic models.
    """
    scored, ids = scored_shapes(), _variants.ids()
    files = {name: measured_shapes.read(RESULTS / f"{name}.tsv.xz") for name in weights}
    measured = [(name, head, shape) for name, (head, held) in files.items() for shape in held]
    shapes = []
    for name, measured_on, shape in measured:
        facts, case = facts_of(measured_on), shape.case
        families = LEARNED_FAMILIES.get(case.dtype)
        is_vector = families is not None and min(case.m, case.n) == 1  # which no forest serves
        if is_vector or (case.batch, case.m, case.n, case.k) in scored:
            continue
        query = _variants.matmul_query(
            case.m, case.n, case.k, getattr(torch, case.dtype), case.layout, facts, case.batch
        )
        splits = measured_on.get("float32") == "split"
        query.float32 = _native.FLOAT32.index("split" if splits else "strict")
        eligible = [c for c in _native.explain(query)[1] if c.eligible]  # also torch
        able = {_variants.name_of(c.variant) for c in eligible}
        if families is not None:
            learned = {TORCH, *families, *(SPLIT_FAMILIES if splits else ())}
            able = {kernel for kernel in able if _variants.family_of(ids[kernel]) in learned}
        missing = {kernel for kernel in able if kernel.startswith("sm90_dmma")} if name == WITHOUT_DMMA else set()
        us = {kernel: value for kernel, value in shape.us.items() if kernel in able - missing}
        outdated = {kernel for kernel in us if is_outdated(name, kernel, case)}
        is_known = not missing and not outdated
        names = us.keys() | missing
        if len(names) == 1:
            continue
        # explain's predictions are not used, because they contain the corrections of the present forests.
        also = able & {_variants.name_of(c.variant) for c in eligible if not c.forced_only} if splits else set()
        predicted = {kernel: 2 ** features(query, ids[kernel], 1.0)[PREDICTED] for kernel in sorted(names | also)}
        if splits:
            strict = [k for k in predicted if k != TORCH and not _variants.splits_float32(k)]
            if not strict:  # the dispatcher does not ask the forests then
                continue
            fastest = min(predicted[kernel] for kernel in strict)
            near = {kernel for kernel in strict if predicted[kernel] <= reach(fastest) * fastest}
            predicted = {kernel: value for kernel, value in predicted.items() if kernel in names | near}
        of_file = "split " if splits else "trimmed " if "-trimmed" in name else ""
        kind = f"{measured_on['gpu'].removeprefix('NVIDIA ').split()[0]} {of_file}{shape.kind}"
        shapes.append(Shape(kind, case, weights[name], us, query, predicted, is_known, outdated))
    return {"gpus": list(dict.fromkeys(head["gpu"] for head, _ in files.values())), "shapes": len(measured)}, shapes


def fit(settings: dict[str, Any], x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> CatBoostRegressor:
    model = CatBoostRegressor(
        loss_function="RMSE", border_count=BORDERS, random_seed=2, verbose=0, allow_writing_files=False, **settings
    )
    counts = weights > 0
    model.fit(x[counts], y[counts], sample_weight=weights[counts])
    return model


class Kernels:
    """The rows of the kernels' forests: every kernel of ``Shape.predicted``, at every shape.

    Rows without a measured time have the weight 0. ``may_win`` has the rows of the kernels that may be chosen,
    ``planes`` those of the kernels that split float32, and ``strict`` those of the others.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        ids = _variants.ids()
        rows = [(i, name) for i, shape in enumerate(shapes) for name in shape.predicted if name != TORCH]
        self.shape = np.array([i for i, _ in rows])
        self.names = [name for _, name in rows]
        self.x = np.array([features(shapes[i].query, ids[name]) for i, name in rows], dtype=np.float32)
        self.predicted = np.log2([shapes[i].predicted[name] for i, name in rows])
        measured = np.log2([shapes[i].us.get(name, shapes[i].predicted[name]) for i, name in rows])
        has_time = np.array([name in shapes[i].us for i, name in rows])
        self.y = measured - self.predicted
        self.may_win = np.flatnonzero(has_time | ~np.array([shapes[i].is_known for i, _ in rows]))
        splits = np.array([_variants.splits_float32(name) for _, name in rows])
        self.strict, self.planes = np.flatnonzero(~splits), np.flatnonzero(splits)
        best = np.full(len(shapes), np.inf)
        np.minimum.at(best, self.shape[has_time], measured[has_time])
        best = np.where(np.isfinite(best), best, 0.0)[self.shape]
        of_row = [shapes[i].weight * (OUTDATED if name in shapes[i].outdated else 1.0) for i, name in rows]
        # Slow kernels need no exact time.
        self.weights = np.array(of_row) * np.where(has_time, 8.0 ** (best - measured), 0.0)

    def fit(self, settings: dict[str, Any], rows: np.ndarray) -> CatBoostRegressor:
        return fit(settings, self.x[rows], self.y[rows], self.weights[rows])

    def out_of_fold(self, settings: Settings, fold: np.ndarray) -> np.ndarray:
        """The corrections of all rows, by forests that have not seen their shapes. ``fold`` has that of each shape."""
        result = np.zeros(len(self.y))
        for of_rows, rows in ((settings.kernels, self.strict), (settings.planes, self.planes)):
            if len(rows):
                x, y, weights = self.x[rows], self.y[rows], self.weights[rows]
                result[rows] = out_of_fold(of_rows, x, y, fold[self.shape[rows]], weights)
        return result

    def best(self, correction: np.ndarray, rows: np.ndarray) -> dict[int, tuple[float, str]]:
        """For every shape among ``rows``: log2 of the shortest corrected time, and the kernel that has it."""
        found: dict[int, tuple[float, str]] = {}
        for row, us in zip(rows, (self.predicted + correction)[rows], strict=True):
            if us < found.get(self.shape[row], (np.inf, ""))[0]:
                found[self.shape[row]] = us, self.names[row]
        return found


def out_of_fold(
    settings: dict[str, Any], x: np.ndarray, y: np.ndarray, fold: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    result = np.zeros(len(y))
    for held in range(FOLDS):
        seen = fold != held
        model = fit(settings, x[seen], y[seen], weights[seen])
        result[~seen] = model.predict(x[~seen])
    return result


def score(shapes: Sequence[Shape], chosen: Sequence[str]) -> str:
    """The figures of a user of these choices, as text."""
    torch_us = np.array([shape.us[TORCH] for shape in shapes])
    us = np.array([shape.us[name] for shape, name in zip(shapes, chosen, strict=True)])
    best = np.array([min(shape.us.values()) for shape in shapes])
    slowdown, ratio = us / best - 1, torch_us / us
    return (
        f"{len(shapes):5} shapes: choice over torch {np.exp(np.log(ratio).mean()):.4f}, over best "
        f"{np.exp(np.log(best / us).mean()):.4f}, best over torch {np.exp(np.log(torch_us / best).mean()):.4f}, below "
        f"0.97 {100 * (ratio < 0.97).mean():.2f} %, worst {ratio.min():.3f}, slowdown against the best at "
        f"the 95th percentile {100 * np.quantile(slowdown, 0.95):.1f} %"
    )


@dataclass
class Tree:
    """``questions`` has the feature and the border of each bit of an index into ``leaf``, the lowest first."""

    questions: list[tuple[int, float]]
    leaf: list[int]
    shift: int

    def sorted(self, shared: int) -> Tree:
        """The same tree, with the questions about shared features last."""
        order = sorted(range(len(self.questions)), key=lambda level: self.questions[level][0] < shared)
        places = (sum((i >> bit & 1) << level for bit, level in enumerate(order)) for i in range(len(self.leaf)))
        return Tree([self.questions[level] for level in order], [self.leaf[i] for i in places], self.shift)

    def own(self, shared: int) -> int:
        """The number of questions about features that are not shared."""
        return sum(feature >= shared for feature, _ in self.questions)


def trees_of(model: CatBoostRegressor, path: Path) -> tuple[float, list[Tree]]:
    """The bias of a model, and its trees."""
    model.save_model(str(path), format="json")
    data = json.loads(path.read_text())
    scale, (bias,) = data["scale_and_bias"]
    if scale != 1:
        raise ValueError(f"a scale of {scale}")
    trees = []
    for tree in data["oblivious_trees"]:
        questions = [(split["float_feature_index"], split["border"]) for split in tree["splits"]]
        largest = max(map(abs, tree["leaf_values"])) * UNIT
        shift = next(shift for shift in range(16) if largest / 2**shift < MOST + 0.5)
        trees.append(Tree(questions, [round(value * UNIT / 2**shift) for value in tree["leaf_values"]], shift))
    return bias, trees


def lines(values: Sequence[object]) -> str:
    text, out = "", []
    for value in values:
        word = f"{value},"
        if len(text) + len(word) > 118:
            out.append(text)
            text = ""
        text += word
    return "\n".join([*out, text])


def number(value: float) -> str:
    return "1e30f" if value == float("inf") else f"{value:.6g}f" if "." in f"{value:.6g}" else f"{value:.6g}.f"


def forest(name: str, bias: float, trees: Sequence[Tree], shared: int, features: int) -> tuple[str, str]:
    """A forest in the form of learned.h's: its arrays, and its initialiser.

    ``shared`` is how many of the ``features`` are the same for all kernels.
    """
    trees = sorted((tree.sorted(shared) for tree in trees), key=lambda tree: (tree.own(shared), tree.shift))
    depth = max(len(tree.questions) for tree in trees)
    runs = Counter((tree.own(shared), tree.shift) for tree in trees)
    every = sorted({question for tree in trees for question in tree.questions})
    borders = [[border for feature, border in every if feature == f] for f in range(features)]
    first, border, pivots = [0], list[float](), list[float]()
    for of_feature in borders:
        chunks = [*of_feature, *[float("inf")] * (LANES - len(of_feature) % LANES)]
        border += chunks
        first.append(len(border))
        pivots += [*chunks[LANES - 1 :: LANES], *[float("inf")] * (PIVOTS - len(chunks) // LANES)]
    own = [question for question in every if question[0] >= shared]
    place_of_own = {q: first[q[0]] - first[shared] + borders[q[0]].index(q[1]) for q in own}
    own_count = first[-1] - first[shared]
    asked = []  # for each TOGETHER trees and bit of their indices: features, and the places among their borders
    for start in range(0, len(trees), TOGETHER):
        for bit in range(depth):
            block = [(0, NEVER)] * TOGETHER
            for i, tree in enumerate(trees[start : start + TOGETHER]):
                if tree.own(shared) <= bit < len(tree.questions):
                    feature, value = tree.questions[bit]
                    block[i] = feature, borders[feature].index(value)
            asked += block
    most = max(map(len, borders))
    if len(trees) > MOST_TREES or own_count > MOST_OWN_QUESTIONS or depth > MOST_DEPTH or most >= NEVER:
        raise ValueError(f"{len(trees)} trees of {depth} levels, {own_count} questions about kernels, {most} borders")
    arrays: dict[str, tuple[str, Sequence[object]]] = {
        "runs": ("Forest::Run", [f"{{{count},{questions},{shift}}}" for (questions, shift), count in runs.items()]),
        "border": ("float", [number(value) for value in border]),
        "pivot": ("float", [number(value) for value in pivots]),
        "first": ("uint16_t", first),
        "feature": ("uint8_t", [feature for feature, _ in asked]),
        "place": ("int8_t", [place for _, place in asked]),
        "own_asked": ("uint16_t", [place_of_own[q] for tree in trees for q in tree.questions[: tree.own(shared)]]),
        "leaf": (
            "signed char",
            [value for tree in trees for value in tree.leaf + [0] * ((1 << depth) - len(tree.leaf))] + [0] * PADDING,
        ),
    }
    if not own:
        arrays = {array: arrays[array] for array in arrays if not array.startswith("own_")}
    names = {array: f"k{name}{array.title().replace('_', '')}" for array in arrays}
    text = "\n".join(
        f"alignas(64) constexpr {kind} {names[array]}[] = {{\n{lines(values)}}};"
        for array, (kind, values) in arrays.items()
    )
    members = {"trees": len(trees), "depth": depth, "bias": repr(bias), "unit": f"1.0 / {UNIT}", "run_count": len(runs)}
    members |= {"runs": names["runs"], "shared": shared} | names
    return text, f".{name.lower()} = {{{', '.join(f'.{member} = {value}' for member, value in members.items())}}}"


def source(
    head: dict[str, Any],
    models: dict[str, tuple[CatBoostRegressor, int]],
    doubted: float,
    families: int,
    scratch: Path,
) -> str:
    """The text of the file that learned.cc includes. ``models`` has each model and the number of its features."""
    names = " and ".join(head["gpus"])
    text = [f"// Written by benchmarks/fit_model.py from {head['shapes']} shapes measured on one each of {names}."]
    members = []
    for name, (model, count) in models.items():
        shared = PREDICTED if name in ("Kernels", "Planes") else count
        arrays, member = forest(name, *trees_of(model, scratch), shared, count)
        text.append(arrays)
        members.append(member)
    members += [f".doubted = {doubted}", f".families = {families}"]
    text.append(f"constexpr Learned kLearned = {{{', '.join(members)}}};")
    return "\n".join(text) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Only score the choice by cross-validation; write nothing.")
@click.option("--model", type=click.Choice(list(WEIGHTS)), required=True)
@click.option("--output", type=click.Path(path_type=Path), help="Another file.")
def main(model: str, check: bool, output: Path | None) -> None:
    """Fit a model of the dispatcher to measured shapes."""
    head, shapes = read(WEIGHTS[model])
    settings = SETTINGS[model]
    kernels = Kernels(shapes)
    known = np.array([shape.is_known for shape in shapes])
    click.echo(f"{len(shapes)} shapes, {known.sum()} with all times, {(kernels.weights > 0).sum()} times of kernels")
    sizes, place = np.unique([shape_of(shape.case) for shape in shapes], axis=0, return_inverse=True)
    fold = np.random.default_rng(0).integers(0, FOLDS, len(sizes))[place]  # shapes of the same sizes stay together
    weights = np.array([shape.weight for shape in shapes])
    correction = kernels.out_of_fold(settings, fold)
    best, strict = (kernels.best(correction, rows) for rows in (kernels.may_win, kernels.strict))
    x = np.array(
        [features(shape.query, _native.TORCH, 2 ** strict[i][0]) for i, shape in enumerate(shapes)], dtype=np.float32
    )
    y = np.log2([shape.us[TORCH] / shape.predicted[TORCH] for shape in shapes])
    lead = out_of_fold(settings.torch, x, y, fold, weights) + np.log2([s.predicted[TORCH] for s in shapes])
    lead -= [best[i][0] for i in range(len(shapes))]
    beside_lead = np.column_stack([x, lead.astype(np.float32)])
    # How far off the lead is, can be said only of shapes whose fastest kernel has a time. The others count nothing.
    ours = [shape.us[best[i][1]] if shape.is_known else shape.us[TORCH] for i, shape in enumerate(shapes)]
    off = np.abs(lead - np.log2([shape.us[TORCH] / us for shape, us in zip(shapes, ours, strict=True)]))
    of_known = weights * known
    if check:
        doubt = np.maximum(0, out_of_fold(settings.doubt, beside_lead, off, fold, of_known))
        margin = np.log2(MARGIN) + DOUBTED[model] * doubt
        chosen = [best[i][1] if lead[i] > margin[i] else TORCH for i in range(len(shapes))]
        scored = [i for i, shape in enumerate(shapes) if shape.is_known]
        click.echo(score([shapes[i] for i in scored], [chosen[i] for i in scored]))
        for kind in sorted({shapes[i].kind for i in scored}):
            of_kind = [i for i in scored if shapes[i].kind == kind]
            click.echo(f"{kind:>13} " + score([shapes[i] for i in of_kind], [chosen[i] for i in of_kind]))
        return
    models = {
        "Kernels": (kernels.fit(settings.kernels, kernels.strict), kernels.x.shape[1]),
        "Torch": (fit(settings.torch, x, y, weights), x.shape[1]),
        "Doubt": (fit(settings.doubt, beside_lead, off, of_known), beside_lead.shape[1]),
    }
    if len(kernels.planes):
        models["Planes"] = kernels.fit(settings.planes, kernels.planes), kernels.x.shape[1]
    output = output or MODELS / f"learned_{model}.inc.xz"
    scratch = output.with_suffix(".json")
    codes, times = np.unique(kernels.x[kernels.weights > 0, FAMILY].astype(int), return_counts=True)
    families = sum(1 << code for code in codes[times >= LEAST_TIMES].tolist())
    text = source(head, models, DOUBTED[model], families, scratch)
    output.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    scratch.unlink()
    click.echo(f"{output}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
