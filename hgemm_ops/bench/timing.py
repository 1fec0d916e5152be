"""The timing protocol.

A *body* is one pass of a contender over all the buffer sets, captured in a CUDA graph, so that neither launch cost nor
a warm L2 is measured. The bodies of all contenders are replayed round by round, each round in a new random order;
ratios are taken within a round (``statistics.paired_ratio``). Clocks and power are left as they are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")

WARMUP_REPLAYS = 3
_MIN_ROTATION = 600_000_000
_MIN_SETS = 2


def rotation_bytes(device: torch.device) -> int:
    """The memory that a body must go through: ten times the L2.

    The L2 is not LRU. At three times its size there are still hits.
    """
    if device.type != "cuda":
        return _MIN_ROTATION
    return max(_MIN_ROTATION, 10 * int(torch.cuda.get_device_properties(device).L2_cache_size))


def set_count(bytes_per_set: int, total: int) -> int:
    """The buffer sets needed to go through ``total`` bytes.

    They are at least two, so that no call has the input of the call before it.
    """
    return max(_MIN_SETS, -(-total // bytes_per_set))


def peak_bytes(call: Callable[[S], Tensor], buffers: S, device: torch.device) -> int | None:
    """The bytes that a call takes from torch's allocator at its peak, its result included. None without a GPU."""
    if device.type != "cuda":
        return None
    with torch.no_grad():
        call(buffers)  # cuBLAS allocates its own workspace once for each stream
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call(buffers)
    return torch.cuda.max_memory_allocated(device) - before


#: How often each contender is timed: one number for all, or a number for each name.
Rounds = int | Mapping[str, int]


def schedule(names: Sequence[str], rounds: Rounds, seed: int) -> Iterator[list[str]]:
    """The order of the contenders in each round. Contenders with fewer rounds take part in the first ones."""
    shuffler = random.Random(seed)
    each = dict.fromkeys(names, rounds) if isinstance(rounds, int) else rounds
    for i in range(max((each[name] for name in names), default=0)):
        left = [name for name in names if each[name] > i]
        yield shuffler.sample(left, len(left))


def interleave(
    names: Sequence[str], rounds: Rounds, seed: int, measure: Callable[[str], Callable[[], float]]
) -> dict[str, list[float]]:
    """Times every contender once a round, until it has had all its rounds.

    ``measure(name)`` runs one contender and returns a function that gives its time. These functions are called after
    the last round, so that no contender waits until the time of another one is known.
    """
    pending: dict[str, list[Callable[[], float]]] = {name: [] for name in names}
    for order in schedule(names, rounds, seed):
        for name in order:
            pending[name].append(measure(name))
    return {name: [read() for read in reads] for name, reads in pending.items()}


def fill_with_nan(output: Tensor) -> None:
    """Fills a result with NaN, or with the least integer where its type has no NaN."""
    has_nan = output.is_floating_point() or output.is_complex()
    output.fill_(float("nan") if has_nan else torch.iinfo(output.dtype).min)


@dataclass(frozen=True)
class Body:
    """A captured pass over the buffer sets; ``outputs[i]`` is where the result for set ``i`` is written."""

    graph: torch.cuda.CUDAGraph
    outputs: list[Tensor]

    @classmethod
    def capture(
        cls, call: Callable[[S], Tensor], sets: Sequence[S], stream: torch.cuda.Stream | None = None, pool: Any = None
    ) -> Body:
        """Captures a pass of ``call`` over the sets.

        ``stream`` and ``pool`` (from torch.cuda.graph_pool_handle) can be shared by bodies whose calls write to results
        that the caller owns.
        """
        stream = stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            with torch.cuda.stream(stream):
                call(sets[0])  # modules, handles and workspaces are created outside the capture
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                # All results are alive at the end of the pass, so no two share memory.
                outputs = [call(buffers) for buffers in sets]
        return cls(graph, outputs)

    def poison(self) -> None:
        """Overwrites the results, so that an element that the pass does not write is noticed."""
        for output in self.outputs:
            fill_with_nan(output)

    def replay(self) -> None:
        self.graph.replay()

    def start(self) -> Callable[[], float]:
        """Enqueues one timed pass. The returned function waits for its end and gives microseconds per set."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()

        def microseconds() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e3 / len(self.outputs)

        return microseconds


def soak(seconds: float, device: torch.device, size: int = 8192, clock: Callable[[], float] = time.monotonic) -> None:
    """Multiplies size x size matrices for ``seconds``, because large matmuls slow down while the GPU warms up."""
    if seconds <= 0:
        return
    x = torch.randn(size, size, dtype=torch.float16, device=device)
    end = clock() + seconds
    while clock() < end:
        for _ in range(20):
            y = torch.mm(x, x)
        y[0, 0].item()  # so that no queue builds up


def warm_up(bodies: Mapping[str, Body], seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Replays all bodies in turn, ``WARMUP_REPLAYS`` times and until ``seconds`` have passed.

    After a pause, large matmuls are faster for some tenths of a second, most likely until the power limit takes effect.
    In this time their ratios are different, too.
    """
    replays, end = 0, clock() + seconds
    while replays < WARMUP_REPLAYS or clock() < end:
        for body in bodies.values():
            body.replay()
        replays += 1
        if seconds > 0:
            torch.cuda.synchronize()  # so that no queue builds up


def time_bodies(
    bodies: Mapping[str, Body], rounds: Rounds, seed: int, warmup_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Microseconds per call of every contender, round by round."""
    warm_up(bodies, warmup_seconds)
    return interleave(list(bodies), rounds, seed, lambda name: bodies[name].start())


def errors(output: Tensor, reference: Tensor) -> Tensor:
    """``|output - reference| / |reference|`` in the 2-norm and in the maximum norm; NaN where the output holds one."""
    difference, smallest = output.double() - reference, torch.finfo(torch.float64).tiny
    return torch.stack(
        [
            torch.linalg.vector_norm(difference, order) / torch.linalg.vector_norm(reference, order).clamp(min=smallest)
            for order in (2.0, float("inf"))
        ]
    )


def worst(rows: Iterable[Tensor]) -> tuple[float, float]:
    """The largest error of each kind. NaN counts as larger than any number."""
    two_norm, maximum = torch.stack(list(rows)).amax(0).tolist()
    return two_norm, maximum
