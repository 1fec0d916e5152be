"""Times many shapes in little time: the suites ``random`` and ``zoo``, and the data of the dispatcher's model.

The protocol is the one of ``timing``, with less work. A shape with all its kernels takes a fifth of a second:

- Operands and results are views of buffers that are filled once. A rotation goes past the L2, with at most
  ``most_sets`` sets.
- Every kernel first runs over poisoned results. Sampled elements of two sets are compared with float64, within the
  limits of the other suites. Every element of all sets is compared with torch's result.
- All kernels are timed in one round, from CUDA graphs. Then the fastest ones, torch and the dispatcher's choice are
  timed in more rounds, interleaved. A kernel's time is torch's time over the median of paired ratios.
- The best kernel is found in half of the rounds and timed in the others, because the fastest of many equal kernels
  looks faster than it is.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

import hgemm_ops
from hgemm_ops import _tables, _variants

from . import record, runner, sampling, timing, workload, zoo
from .statistics import median
from .suites import KEY, Case
from .zoo import Model

TORCH = runner.TORCH
NAMES = ("random", "zoo")
RECORDS = (*NAMES, "tuned")  # benchmarks/tuned.py writes the last one
MODEL = "model"  # shapes to fit the dispatcher's model to (shapes.py)

_SAMPLED = 64  # rows, and columns, of the result that are compared with float64
_ALIGNMENT = 128  # elements; a view starts where a new allocation could start
_WHOLE = 16  # bytes
_SLACK = 4  # limit of a result's largest difference from torch's, in multiples of torch's error or one rounding


@dataclass(frozen=True)
class Options:
    """How to run a survey.

    within: only kernels that are predicted to take at most this many times as long as the fastest are timed.
    candidates: the largest number of such kernels, of those that split float32 and of the others; None is no limit.
        One more is drawn from the rest of ``within``. Otherwise no time of a kernel would ever correct its prediction
        where that is too long.
    screening: the rounds in which all of them are timed.
    finalists: how many of the fastest are then timed in ``rounds``.
    most_sets: the largest number of operand sets in the rotation.
    rows: the largest m in the model's data.
    sizes: one of ``sampling.DRAWS``, for the model's data.
    """

    within: float = 2.0
    candidates: int | None = None
    screening: int = 1
    finalists: int = 5
    rounds: int = 6
    most_sets: int = 128
    seed: int = 0
    rows: int | None = None
    sizes: str = sampling.DRAWS[0]


@dataclass(frozen=True)
class Set:
    """A (batch, m, k), B (batch, k, n) and the result (batch, m, n), without the batch where it is 1."""

    a: Tensor
    b: Tensor
    out: Tensor


class Memory:
    """The buffers of which the operands and results of every case are views.

    Operands are N(0, 1). They are drawn when a buffer has to grow.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._generator = torch.Generator(device).manual_seed(seed)
        self._operands: dict[str, Tensor] = {}
        self._results: dict[str, Tensor] = {}

    def sets(self, case: Case, count: int) -> tuple[list[Set], Tensor]:
        """``count`` sets of the case, and their results as one tensor (count, elements)."""
        sizes = (case.batch * case.m * case.k, case.batch * case.k * case.n)
        starts = [0]
        for _ in range(count):
            for size in sizes:
                starts.append(starts[-1] + _aligned(size))
        operands = self._buffer(
            self._operands, case.dtype, starts[-1], lambda flat: flat.normal_(generator=self._generator)
        )
        size = case.batch * case.m * case.n
        flat = self._buffer(self._results, case.dtype, count * _aligned(size), lambda flat: flat)
        results = flat[: count * _aligned(size)].view(count, -1)[:, :size]
        batch = (case.batch,) if case.batch > 1 else ()

        def matrix(start: int, rows: int, columns: int, order: str) -> Tensor:
            flat = operands[start : start + case.batch * rows * columns]
            return flat.view(*batch, rows, columns) if order == "N" else flat.view(*batch, columns, rows).mT

        made = [
            Set(
                matrix(starts[2 * i], case.m, case.k, case.layout[0]),
                matrix(starts[2 * i + 1], case.k, case.n, case.layout[1]),
                results[i].view(*batch, case.m, case.n),
            )
            for i in range(count)
        ]
        return made, results

    def _buffer(self, held: dict[str, Tensor], dtype: str, size: int, fill: Callable[[Tensor], Tensor]) -> Tensor:
        if dtype not in held or held[dtype].numel() < size:
            held.pop(dtype, None)
            held[dtype] = fill(torch.empty(size, dtype=getattr(torch, dtype), device=self.device))
        return held[dtype]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def torch_call(x: Set) -> Tensor:
    return (torch.mm if x.a.dim() == 2 else torch.bmm)(x.a, x.b, out=x.out)


def kernel_call(name: str) -> Callable[[Set], Tensor]:
    id_ = _variants.resolve(name)
    return lambda x: torch.ops.hgemm.matmul.out(x.a, x.b, variant=id_, out=x.out)


@dataclass(frozen=True)
class Measurement:
    """The measurement of a case.

    sets: how many operand sets the rotation had.
    us: microseconds of torch and of each kernel whose result was right.
    best: the speed over torch of the fastest contender. It is at least 1 without noise, because torch counts too.
    best_by: the name of the fastest contender.
    wrong: each kernel whose result was wrong, with how far off it was.
    """

    sets: int
    us: dict[str, float]
    best: float
    best_by: str
    wrong: dict[str, str] = field(default_factory=dict)


def best_of(ratios: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    """The speed over torch of the fastest contender, and its name.

    The fastest contender is found in every other round and timed in the rounds between, because the fastest of many
    equal contenders looks faster than it is. This is done both ways round: each set of rounds is used once to find it
    and once to time it.

    ``ratios`` has the speed over torch in each round. Torch itself need not be in it.
    """
    every = {TORCH: [1.0] * min(map(len, ratios.values()), default=1), **ratios}

    def ranked(rounds: slice) -> dict[str, float]:
        return {name: median(samples[rounds] or samples) for name, samples in every.items()}

    def fastest(medians: Mapping[str, float]) -> str:
        return max(medians, key=lambda name: medians[name])

    even, odd, whole = ranked(slice(0, None, 2)), ranked(slice(1, None, 2)), ranked(slice(None))
    name = fastest(whole)
    if fastest(even) == fastest(odd) == name:
        return whole[name], name
    return (even[fastest(odd)] * odd[fastest(even)]) ** 0.5, name


@torch.inference_mode()  # a call that skips autograd's dispatch keys costs the host less
def measure(
    case: Case, names: Sequence[str], memory: Memory, options: Options, kept: Collection[str] = ()
) -> Measurement:
    """Checks and times torch and the kernels ``names`` on a plain matmul (op ``matmul``, no padding).

    ``kept`` names kernels that are timed in all rounds however slow they are.
    """
    device = memory.device
    rotation = timing.rotation_bytes(device)
    count = 1 if case.bytes >= rotation else min(options.most_sets, timing.set_count(case.bytes, rotation))
    sets, results = memory.sets(case, count)
    calls: dict[str, Callable[[Set], Tensor]] = {TORCH: torch_call, **{name: kernel_call(name) for name in names}}
    # All contenders write to the same results, one after the other, so that one stream and one memory pool are enough.
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    bodies = {name: timing.Body.capture(call, sets, memory.stream, pool) for name, call in calls.items()}
    wrong = verify(case, sets, results, bodies)
    for name in wrong:
        del bodies[name]

    def timed(names: Sequence[str], rounds: int, seed: int) -> tuple[float, dict[str, list[float]]]:
        times = timing.interleave(names, rounds, seed, lambda name: bodies[name].start())
        base = times.pop(TORCH)
        return median(base), {name: [b / o for b, o in zip(base, other, strict=True)] for name, other in times.items()}

    _, screened = timed(list(bodies), options.screening, options.seed)
    speeds = {name: median(samples) for name, samples in screened.items()}
    last = sorted(speeds, key=lambda name: -speeds[name])[: options.finalists]
    last += [name for name in dict.fromkeys(kept) if name in speeds and name not in last]
    torch_us, ratios = timed([TORCH, *last], options.rounds, options.seed + 1)
    speeds |= {name: median(samples) for name, samples in ratios.items()}
    best, best_by = best_of(ratios)
    us = {TORCH: torch_us, **{name: torch_us / speed for name, speed in speeds.items()}}
    return Measurement(count, us, best, best_by, wrong)


def verify(case: Case, sets: Sequence[Set], results: Tensor, bodies: Mapping[str, timing.Body]) -> dict[str, str]:
    """Checks the graphs that will be timed, and returns the wrong contenders with the reason in words.

    Each graph is replayed over poisoned results.

    Raises:
        RuntimeError: torch's own result is wrong, so that there is nothing to compare with.
    """
    chosen = torch.Generator().manual_seed(case.m * case.n + case.k)
    rows = torch.randint(case.m, (_SAMPLED,), generator=chosen).to(results.device)
    columns = torch.randint(case.n, (_SAMPLED,), generator=chosen).to(results.device)

    def sample(out: Tensor) -> Tensor:
        return out.index_select(-2, rows).index_select(-1, columns)

    checked = (sets[0], sets[-1])
    exact = [x.a.index_select(-2, rows).double() @ x.b.index_select(-1, columns).double() for x in checked]
    expected, found = None, []
    for body in bodies.values():  # torch comes first
        results.fill_(float("nan"))
        body.replay()
        sampled = torch.stack([timing.errors(sample(x.out), y) for x, y in zip(checked, exact, strict=True)]).amax(0)
        if expected is None:
            expected, scale = results.clone(), results.abs().amax().double()
        difference = (results - expected).abs_().amax().double() / scale
        found.append(torch.cat([sampled, difference[None]]))
    errors = dict(zip(bodies, torch.stack(found).tolist(), strict=True))
    own, eps = errors[TORCH], torch.finfo(getattr(torch, case.dtype)).eps
    two_norm, largest = runner.error_limits(case, (own[0], own[1]), False)
    limits = two_norm, largest, _SLACK * (largest if case.dtype == "float64" else max(own[1], eps))
    wrong = {
        name: "errors {:.2e} and {:.2e}, {:.2e} from torch's; allowed {:.2e}, {:.2e}, {:.2e}".format(a, b, c, *limits)
        for name, (a, b, c) in errors.items()
        if not (a <= limits[0] and b <= limits[1] and c <= limits[2])  # true for NaN as well
    }
    if TORCH in wrong:
        raise RuntimeError(f"{case}: torch's own result is wrong: {wrong[TORCH]}")
    return wrong


# A survey: its cases, the dispatcher's choices for them, and their measurements as they are taken.


@dataclass(frozen=True)
class Choice:
    served_by: str
    source: str


@dataclass(frozen=True)
class Planned:
    """A case, the kernels to time in the order of their predicted times, and the dispatcher's choices.

    A case of the zoo has a choice for each model that has the case, made without the tuning table's entries for that
    model. Any other case has one choice, for "".
    """

    case: Case
    names: tuple[str, ...]
    choices: dict[str, Choice]


@dataclass(frozen=True)
class Row:
    planned: Planned
    measured: Measurement

    def to_json(self) -> dict[str, Any]:
        """A row of the result file."""
        case, us = self.planned.case, self.measured.us
        chosen = {
            model: {
                **asdict(choice),
                "ratio": round(us[TORCH] / us[choice.served_by], 4) if choice.served_by in us else None,
            }
            for model, choice in self.planned.choices.items()
        }
        return {
            **key_of(case),
            "align": case.align,
            "torch_us": round(us[TORCH], 3),
            "best": round(self.measured.best, 4),
            "best_by": self.measured.best_by,
            "chosen": chosen,
            **({"wrong": self.measured.wrong} if self.measured.wrong else {}),
        }


def key_of(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in KEY}


def _explain(case: Case) -> hgemm_ops.Explanation:
    return hgemm_ops.explain(
        M=case.m, N=case.n, K=case.k, dtype=getattr(torch, case.dtype), layout=case.layout, batch=case.batch
    )


def without(tables: Sequence[_tables.Table], model: Model) -> list[_tables.Table]:
    """The tuning tables without the entries of the model's matrices (n, k), with any number of rows."""
    matrices = model.matrices
    return [
        replace(table, entries=[entry for entry in table.entries if (entry.n, entry.k) not in matrices])
        for table in tables
    ]


def plan(cases: Mapping[Case, Sequence[str]] | Sequence[Case], options: Options) -> list[Planned]:
    """Asks the dispatcher about every case, with the shipped tuning tables alone.

    The cases of the zoo come with their models. For each model the dispatcher is asked without the tables' entries for
    it.
    """
    _tables.ensure()  # a later first call would load the tables and undo what is installed below
    tables, models = (
        sampling.shipped_tables(),
        dict(cases) if isinstance(cases, Mapping) else dict.fromkeys(cases, ("",)),
    )
    predicted: dict[Case, dict[str, float]] = {}
    choices: dict[Case, dict[str, Choice]] = {case: {} for case in models}
    try:
        for model in dict.fromkeys(name for held in models.values() for name in held):
            _tables.install(without(tables, zoo.MODELS[model]) if model else list(tables))
            for case in (case for case, held in models.items() if model in held):
                explanation = _explain(case)
                choices[case][model] = Choice(explanation.chosen, explanation.source)
                able = [c for c in explanation.candidates if c.eligible and not c.forced_only and c.family != TORCH]
                predicted[case] = {c.name: c.predicted_us or float("inf") for c in able}
    finally:
        _tables.reload()
    return [Planned(case, _limited(case, predicted[case], choices[case], options), choices[case]) for case in models]


def _limited(
    case: Case, predicted: Mapping[str, float], choices: Mapping[str, Choice], options: Options
) -> tuple[str, ...]:
    names = sorted(predicted, key=lambda name: predicted[name])
    longest = options.within * min(predicted.values(), default=0.0)
    within = [name for name in names if predicted[name] <= longest]
    kinds = ([name for name in within if _variants.splits_float32(name) == splits] for splits in (False, True))
    likely = {name for kind in kinds for name in kind[: options.candidates]}
    chosen = {choice.served_by for choice in choices.values()}
    if others := [name for name in within if name not in likely | chosen]:
        likely.add(random.Random(repr(key_of(case))).choice(others))
    return tuple(name for name in names if name in likely or name in chosen)


def cases_of(
    suite: str,
    seed: int,
    count: int,
    models: Sequence[str] = (),
    rows: int | None = None,
    sizes: str = sampling.DRAWS[0],
) -> Mapping[Case, Sequence[str]] | Sequence[Case]:
    """The cases of ``random``, of ``zoo``, or of the model's data.

    They are in random order, so that a run may end before all of them are measured.
    """
    if suite == "random":
        return sampling.off_table(seed, count)
    if suite == MODEL:
        return sampling.unscored(seed, count, rows, sizes)
    found = zoo.models_of(models)
    order = sorted(found, key=lambda case: hashlib.sha256(repr(key_of(case)).encode()).digest())
    return {case: found[case] for case in order}


def tables_id() -> str:
    """A hash of the shipped tuning tables, with which the choices were made."""
    text = "".join(path.read_text() for path in sorted(_tables.shipped_dir().glob("*.json")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """A file of measurements, one line each, after a line with all that they depend on.

    A run that finds such a file continues it, if all that the measurements depend on is unchanged.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self._path, self._header = path, dict(header)
        self._file: TextIO | None = None
        self._fresh = True
        self._held: dict[str, Measurement] = {}
        last, held = last_part(path) if path else (None, [])
        if last == self._header:
            self._fresh = False
            self._held = {_line_key(line): Measurement(**line["measured"]) for line in held}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, case: Case) -> Measurement | None:
        return self._held.get(_line_key({"case": key_of(case)}))

    def add(self, case: Case, measured: Measurement) -> None:
        rounded = replace(measured, us={name: round(us, 3) for name, us in measured.us.items()})
        self._write({"case": key_of(case), "measured": asdict(rounded)})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
            self._file.write("\n" if self._path.stat().st_size else "")  # the last line may have been cut off
            if self._fresh:
                self._file.write(json.dumps({"header": self._header}) + "\n")
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _line_key(line: Mapping[str, Any]) -> str:
    return json.dumps(line["case"], sort_keys=True)


def last_part(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The last header of a journal, and the measurements after it. A line that was cut off is skipped."""
    header: dict[str, Any] | None = None
    held: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "header" in line:
            header, held = line["header"], []
        else:
            held.append(line)
    return header, held


_DEPENDS = ("gpu", "driver", "torch", "cuda", "hgemm_ops", "csrc", "float32")


def mode_of_float32() -> dict[str, str]:
    """The mode that is in effect, as ``float32``; nothing if it is strict."""
    mode = workload.standing_float32()
    return {} if mode == "strict" else {"float32": mode}


def header_of(suite: str, seed: int, count: int, options: Options) -> dict[str, Any]:
    """All that the measurements of a survey depend on."""
    facts = record.environment() | mode_of_float32()
    return {
        "suite": suite,
        "seed": seed,
        "count": count,
        "options": asdict(options),
        "table": tables_id(),
        **{name: facts[name] for name in _DEPENDS if name in facts},
    }


def unfinished_seed(path: Path | None, header: Mapping[str, Any]) -> int | None:
    """The seed of the journal's last run, if a run with this header would complete it.

    None if the run is complete, or if the headers differ in more than the seed.
    """
    last, held = last_part(path) if path else (None, [])
    if last is None or len(held) >= last.get("count", 0) or {**last, "seed": None} != {**header, "seed": None}:
        return None
    return int(last["seed"])


def run(
    planned: Sequence[Planned],
    options: Options,
    journal: Journal,
    limit: float | None = None,
    soak: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """Yields a row for each planned case, from the journal or, if it has none, measured now.

    No measurement starts once ``limit`` seconds have passed.
    """
    device = _device()
    memory, begin, warm = Memory(device, options.seed), clock(), False
    for one in planned:
        measured = journal.get(one.case)
        if measured is None:
            if limit is not None and clock() - begin > limit:
                continue
            if not warm:
                timing.soak(soak, device)
                warm = True
            kept = [choice.served_by for choice in one.choices.values()]
            measured = measure(one.case, one.names, memory, options, kept)
            journal.add(one.case, measured)
        yield Row(one, measured)


def document(
    suite: str, seed: int, planned: Sequence[Planned], rows: Sequence[Row], options: Options, soak: float
) -> dict[str, Any]:
    """A survey's result file."""
    left_out = "every entry with the (n, k) of one of the scored model's matrices" if suite == "zoo" else "nothing"
    return record.document(
        survey=suite,
        seed=None if suite == "zoo" else seed,
        planned=len(planned),
        protocol={**asdict(options), "soak_seconds": soak, "rotation_bytes": timing.rotation_bytes(_device())},
        table={"sha256": tables_id(), "left_out": left_out},
        shapes=[row.to_json() for row in rows],
    )


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
