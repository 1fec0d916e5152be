"""Stresses the runtime on this GPU with long runs and unusual orders of events.

It checks memory that must not grow, memory that is used again, graphs captured beside eager calls, kernels that read
what the kernel right before them wrote in place, and products under a limit of memory, which must end as torch's do.

Values are small integers, which matrices of zeros and ones select, but for the products under a limit. So every sum is
exact, and a stale or overwritten operand makes results unequal. Writes ``results/<gpu>/stress_runtime.json``; ends
with status 1 if something is wrong.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

import hgemm_ops
from hgemm_ops.bench import record

RESULTS = Path(__file__).parent / "results"
_PAGE = 4096
_MOST_GROWTH = 4 << 20  # bytes; the sizes of allocators vary by less
_SYNCHRONIZE_EVERY = 500  # calls of a thread, so that no queue grows
_MOST = 100  # the largest absolute value: exact in bfloat16, even after a few additions


class Machine:
    """A CUDA device, or the CPU, on which streams do nothing and the logic can be tried."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"

    def stream(self) -> Any:
        return torch.cuda.Stream(self.device) if self.on_gpu else None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()

    def synchronize(self, stream: Any = None) -> None:
        if stream is not None:
            stream.synchronize()
        elif self.on_gpu:
            torch.cuda.synchronize(self.device)

    def integers(self, *shape: int, dtype: torch.dtype = torch.float16, seed: int | None = None) -> Tensor:
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        return torch.randint(-_MOST, _MOST + 1, shape, device=self.device, generator=generator).to(dtype)

    def selection(self, k: int, n: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
        """A matrix (k, n) with a single 1 in each column, and the rows of these ones.

        x @ matrix is x[:, rows].
        """
        rows = torch.randint(k, (n,), device=self.device)
        matrix = torch.zeros(k, n, dtype=dtype, device=self.device)
        matrix[rows, torch.arange(n, device=self.device)] = 1
        return matrix, rows

    def memory(self) -> dict[str, int]:
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * _PAGE
        if not self.on_gpu:
            return {"host": resident}
        free, total = torch.cuda.mem_get_info(self.device)
        return {"host": resident, "device": total - free, "reserved": torch.cuda.memory_reserved(self.device)}


def _machine() -> Machine:
    return Machine(torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))


# A million calls


def count_calls(machine: Machine, calls: int, shapes: int, threads: int, streams: int, samples: int) -> dict[str, Any]:
    """Threads multiply on shared streams in one context.

    They are stopped ``samples`` times to look at the memory.
    """
    rng = random.Random(0)
    sizes = set()
    while len(sizes) < shapes:
        m, n, k = (rng.choice((8, 16, 33, 64, 128, 200, 256, 384)) for _ in range(3))
        sizes.add((m, n, k))
    on_streams = [machine.stream() for _ in range(streams)]
    dtypes = (torch.float16, torch.bfloat16)
    operands = [
        [
            (machine.integers(m, k, dtype=dtypes[i % 2]), machine.integers(k, n, dtype=dtypes[i % 2]))
            for i, (m, n, k) in enumerate(sorted(sizes))
        ]
        for _ in range(threads)
    ]
    machine.synchronize()
    rounds = samples + 1  # the first one warms up
    per_round = -(-calls // (threads * rounds))
    arrived, go_on = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        stream, own = on_streams[number % streams], operands[number]
        try:
            with machine.on(stream), torch.no_grad():
                for _ in range(rounds):
                    for call in range(per_round):
                        a, b = own[(call * 7 + number) % shapes]
                        a @ b
                        if call % _SYNCHRONIZE_EVERY == 0:
                            machine.synchronize(stream)
                    machine.synchronize(stream)
                    arrived.wait()
                    go_on.wait()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            failures.append(error)
            arrived.abort()
            go_on.abort()

    found = []
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    with hgemm_ops.use_custom_gemm() as report:
        for worker in workers:
            worker.start()
        try:
            for done in range(1, rounds + 1):
                arrived.wait()
                gc.collect()
                found.append({"calls": done * per_round * threads, **machine.memory()})
                go_on.wait()
        except threading.BrokenBarrierError:
            pass
        for worker in workers:
            worker.join()
        counted = sum(row.calls for row in report.rows)
        ours = sum(row.calls for row in report.rows if row.variant != "torch")
    if failures:
        raise failures[0]
    growth = {name: found[-1][name] - found[0][name] for name in machine.memory()}
    return {
        "calls": found[-1]["calls"],
        "counted": counted,
        "ours": ours,
        "shapes": shapes,
        "threads": threads,
        "streams": streams,
        "samples": found,
        "growth": growth,
        "ok": max(growth.values()) <= _MOST_GROWTH and counted == (found[-1]["calls"] if machine.on_gpu else 0),
    }


# Memory that is used again


def reuse_buffers(machine: Machine, rounds: int) -> dict[str, Any]:
    """Frees operands and results while their kernels are queued, on two streams.

    The next tensors get their memory.
    """
    streams = [machine.stream(), machine.stream()]
    wrong = products = 0
    with hgemm_ops.use_custom_gemm():
        for number in range(rounds):
            kept = []
            for stream in streams:
                with machine.on(stream):
                    for size in (256, 515):
                        weight, rows = machine.selection(size, size)
                        x = machine.integers(64, size)
                        expected = x[:, rows]
                        y = x @ weight
                        del x, weight  # the next tensors get their memory, in the order of the stream
                        noise = [torch.full((64, size), 7.0 + number, dtype=y.dtype, device=machine.device)]
                        noise.append(torch.full((size, size), 3.0, dtype=y.dtype, device=machine.device))
                        kept.append((stream, y, expected, noise))
            first, second = streams
            if machine.on_gpu:  # the second stream uses a result of the first one, which is freed meanwhile
                second.wait_stream(first)
            _, y, expected, _ = kept[0]
            with machine.on(second):
                weight, rows = machine.selection(y.shape[1], 128)
                z = y @ weight
                if machine.on_gpu:
                    y.record_stream(second)
                kept.append((second, z, expected[:, rows], []))
                if machine.on_gpu:
                    expected.record_stream(second)
            machine.synchronize()
            products += len(kept)
            wrong += sum(not torch.equal(result, expected) for _, result, expected, _ in kept)
    return {"rounds": rounds, "products": products, "wrong": wrong, "ok": wrong == 0}


# Graphs beside eager calls


def capture_beside_calls(machine: Machine, graphs: int) -> dict[str, Any]:
    """One thread captures and replays graphs of matmuls while another one multiplies.

    Some captured calls are the first ones of their shapes.
    """
    done = threading.Event()
    wrong: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    failures: list[BaseException] = []

    def multiply() -> None:
        stream = machine.stream()
        try:
            with machine.on(stream):
                weight, rows = machine.selection(512, 515)
                while not done.is_set() or calls["eager"] == 0:
                    calls["eager"] += 1
                    # The default generator must not be used during a capture.
                    x = machine.integers(48, 512, seed=calls["eager"])
                    if not torch.equal(x @ weight, x[:, rows]):
                        wrong["eager"] += 1
        except BaseException as error:
            failures.append(error)

    with hgemm_ops.use_custom_gemm():
        worker = threading.Thread(target=multiply)
        worker.start()
        try:
            for number in range(graphs):
                k, n = 64 + 8 * (number % 40), 72 + number % 57
                weight, rows = machine.selection(k, n)
                x = machine.integers(33, k)
                graph, y = _captured(machine, lambda x=x, weight=weight: x @ weight)
                for _ in range(3):
                    x.copy_(machine.integers(33, k))
                    if graph is None:
                        y = x @ weight
                    else:
                        graph.replay()
                    calls["replayed"] += 1
                    if not torch.equal(y, x[:, rows]):
                        wrong["replayed"] += 1
        finally:
            done.set()
            worker.join()
    if failures:
        raise failures[0]
    return {"graphs": graphs, "calls": dict(calls), "wrong": dict(wrong), "ok": not wrong}


def _captured(machine: Machine, body: Callable[[], Tensor]) -> tuple[Any, Tensor]:
    if not machine.on_gpu:
        return None, body()
    machine.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = body()
    return graph, y


# Chains


@dataclass(frozen=True)
class Link:
    """A matmul of a chain: (batch) m x k times k x n.

    If a row is no multiple of 8 elements, operands are copied or read with narrow loads.
    """

    m: int
    n: int
    k: int
    batch: int = 0

    @property
    def is_square(self) -> bool:
        return self.n == self.k


LINKS = (
    *(Link(m, n, n) for n in (512, 515) for m in (1, 4, 16, 64, 128, 384)),
    *(Link(m, n, 1032) for n in (2048, 2051) for m in (2, 40, 256)),
    *(Link(m, 1030, 1030) for m in (130, 258)),
    *(Link(m, n, k, 300) for m, n, k in ((16, 16, 16), (15, 13, 17), (64, 64, 64), (63, 61, 63))),
    Link(24, 17000, 72),
    Link(24, 17000, 67),
    Link(4000, 4000, 1024),
)
_STEPS = 6


def chain_links(machine: Machine, repeats: int, links: tuple[Link, ...] = LINKS) -> dict[str, Any]:
    """Every kernel that can run a link reads operands that the kernel right before it wrote.

    That kernel adds to A in place, copies into B, or is a matmul itself. The chains run eagerly, and in a graph.
    """
    chains: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for link in links:
        for dtype in (torch.float16, torch.bfloat16):
            for kernel in _kernels(machine, link, dtype):
                with hgemm_ops.use_custom_gemm(variant=kernel):
                    for repeat in range(repeats):
                        for kind in ("A in place", "B in place", *(["product"] if link.is_square else [])):
                            chains[kernel] += 1
                            wrong[kernel] += not _chain_is_right(machine, link, dtype, kind, repeat % 2 == 1)
    kernels = [v.name for v in hgemm_ops.variants() if v.family not in ("ladder", "int8")]
    return {
        "steps": _STEPS,
        "chains": sum(chains.values()),
        "kernels": len(chains),
        "not_reached": [name for name in kernels if name not in chains],
        "wrong": {name: n for name, n in wrong.items() if n},
        "ok": not any(wrong.values()),
    }


def _kernels(machine: Machine, link: Link, dtype: torch.dtype) -> Iterator[str]:
    """The production kernels that can run a link; torch's where there is no GPU."""
    if not machine.on_gpu:
        yield "torch"
        return
    x, weight = _operands(machine, link, dtype)[:2]
    for candidate in hgemm_ops.explain(x, weight).candidates:
        if candidate.eligible and candidate.family not in ("ladder", "torch"):
            yield candidate.name


def _operands(machine: Machine, link: Link, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    weight, rows = machine.selection(link.k, link.n, dtype)
    batch = (link.batch,) if link.batch else ()
    x = machine.integers(*batch, link.m, link.k, dtype=dtype)
    return x, weight.expand(*batch, link.k, link.n).contiguous() if link.batch else weight, rows


def _chain_is_right(machine: Machine, link: Link, dtype: torch.dtype, kind: str, captured: bool) -> bool:
    multiply = torch.bmm if link.batch else torch.mm
    x, weight, rows = _operands(machine, link, dtype)
    first = x.clone()
    others = [machine.selection(link.k, link.n, dtype) for _ in range(_STEPS if kind == "B in place" else 0)]
    shape = (*x.shape[:-1], link.n)
    results = [torch.full(shape, float("nan"), dtype=dtype, device=machine.device) for _ in range(_STEPS)]

    def run() -> Tensor:
        x.copy_(first)
        source = x
        for step, result in enumerate(results):
            if kind == "A in place":
                source.add_(1)
            elif kind == "B in place":
                weight.copy_(others[step][0])
            multiply(source, weight, out=result)
            if kind == "product":
                source = result
        return results[-1]

    if captured:
        graph, _ = _captured(machine, run)
        if graph is not None:
            graph.replay()
    else:
        run()
    expected = first
    for step, result in enumerate(results):
        if kind == "A in place":
            expected = first + (step + 1)
        wanted = expected[..., others[step][1] if kind == "B in place" else rows]
        if not torch.equal(result, wanted):
            return False
        if kind == "product":
            expected = wanted
    return True


# Products under a memory limit


@dataclass(frozen=True)
class Limited:
    """A product, and how many bytes torch's allocator may take for its result and all that lies beside it."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    transposed: tuple[bool, bool]
    dtype: torch.dtype
    door: str  # "override" or "op"
    numerics: str
    left: int


_SPARE = 400 << 20  # bytes: more than any workspace of ours
_SAMPLED = 100_000  # elements of a result that are compared, about


def limited_product(rng: random.Random, largest: int) -> Limited:
    """Draws a product of matrices, or of batches of them, and a limit around what its result takes.

    ``largest``: the most elements of an operand and of the result.
    """

    def size(most: float) -> int:
        x = int(most ** rng.random())
        return x + 1 if rng.random() < 0.6 else -(-x // 64) * 64

    while True:
        m, n, k = size(1e5), size(1e5), size(1e5)
        batch = (size(200),) if rng.random() < 0.3 else ()
        times = batch[0] if batch else 1
        if max(m * k, k * n, m * n) * times <= largest:
            break
    dtype = rng.choice((torch.float16, torch.bfloat16, torch.float32))
    result = m * n * times * dtype.itemsize
    left = rng.choice((rng.randrange(2 * result + 1), result + rng.randrange(_SPARE)))
    transposed = (rng.random() < 0.5, rng.random() < 0.5)
    numerics = "batch_invariant" if rng.random() < 0.2 else "fast"
    return Limited((*batch, m, k), (*batch, k, n), transposed, dtype, rng.choice(("override", "op")), numerics, left)


def _limited_operand(machine: Machine, shape: tuple[int, ...], transposed: bool, dtype: torch.dtype) -> Tensor:
    if transposed:
        return _limited_operand(machine, (*shape[:-2], shape[-1], shape[-2]), False, dtype).mT
    # Filled in place: a large temporary would leave memory that torch's allocator holds and the limit does not count.
    return torch.empty(shape, dtype=dtype, device=machine.device).uniform_(-1, 1)


def _under_limit(machine: Machine, left: int, call: Callable[[], Tensor]) -> tuple[str, Tensor | None]:
    """Returns how the call ends: "ok", or the name of its exception, and a sample of its result.

    The sample is on the CPU and the result is freed, so that the next call finds the memory that this one found.
    """
    if machine.on_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + left) / total))
    try:
        result = call()
        machine.synchronize()
    except Exception as error:
        return type(error).__name__, None
    finally:
        if machine.on_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
    return "ok", result.flatten()[:: max(1, result.numel() // _SAMPLED)].cpu()


def limit_memory(machine: Machine, products: int, seed: int = 0, seconds: float = math.inf) -> dict[str, Any]:
    """Multiplies under limits drawn at random, with torch and with us, for so many seconds at most.

    Where torch finds the memory, so must we: no exception that torch does not raise, and the same result but for
    rounding. Where torch is out of memory, our exception must be the same.

    torch must add up in float32, as our kernels do. By default it may add 16-bit partial sums, whose rounding errors
    are far larger than those of a result near 0.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    wrong: list[str] = []
    end = time.monotonic() + seconds
    for dtype in (torch.float16, torch.bfloat16, torch.float32):  # cuBLAS allocates its workspace at the first call
        x = torch.ones(256, 256, dtype=dtype, device=machine.device)
        _ = x @ x, torch.bmm(x[None], x[None]), x @ x[0]
    for _ in range(products):
        if time.monotonic() > end:
            break
        p = limited_product(rng, 1 << 27 if machine.on_gpu else 1 << 16)
        a = _limited_operand(machine, p.a, p.transposed[0], p.dtype)
        b = _limited_operand(machine, p.b, p.transposed[1], p.dtype)
        multiply = torch.ops.hgemm.matmul if p.door == "op" else torch.matmul
        theirs, expected = _under_limit(machine, p.left, lambda a=a, b=b: torch.matmul(a, b))
        with hgemm_ops.use_custom_gemm(numerics=p.numerics, float32="split") as report:
            ours, found = _under_limit(machine, p.left, lambda a=a, b=b, multiply=multiply: multiply(a, b))
        ends[f"torch {theirs}, ours {ours}"] += 1
        kernels.update({row.variant: row.calls for row in report.rows})
        if theirs != ours and not (ours == "ok" and theirs == "OutOfMemoryError"):
            wrong.append(f"torch {theirs}, ours {ours}: {p}")
        elif expected is not None and found is not None and not _agree(found, expected, p.a[-1]):
            wrong.append(f"another result: {p}")
        del a, b
    return {
        "products": ends.total(),
        "ends": dict(ends),
        "ours": kernels.total() - kernels["torch"],
        "wrong": wrong[:20],
        "ok": not wrong,
    }


def _limits_of(seed: int, products: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(seed)
    return limit_memory(_machine(), products, seed, seconds)


def limit_memory_in_processes(jobs: int, products: int, seconds: float) -> dict[str, Any]:
    """The same in ``jobs`` processes on one GPU, each of which draws products of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        shares = [products // jobs + (seed < products % jobs) for seed in range(jobs)]
        parts = list(pool.map(_limits_of, range(jobs), shares, [seconds] * jobs))
    return {
        "products": sum(part["products"] for part in parts),
        "ends": dict(sum((Counter(part["ends"]) for part in parts), Counter())),
        "ours": sum(part["ours"] for part in parts),
        "wrong": [line for part in parts for line in part["wrong"]][:20],
        "ok": all(part["ok"] for part in parts),
    }


def _agree(found: Tensor, expected: Tensor, k: int) -> bool:
    """Whether two results of values in [-1, 1] differ by rounding only.

    Tensor cores truncate the sum at each 16 steps of K: K / 16 times a part of 2^-23 of a sum of about sqrt(K). torch
    may divide K into more sums than we do, so the errors of the two differ by as much.
    """
    x, y = found.double(), expected.double()
    eps = torch.finfo(found.dtype).eps
    truncated = k / 16 * 2**-23 * k**0.5
    return bool(((x - y).abs() <= 4 * eps * y.abs() + 1e-5 * k**0.5 + truncated).all())


@click.command(help=__doc__)
@click.option("--part", "parts", multiple=True, type=click.Choice(("calls", "reuse", "capture", "chains", "limits")))
@click.option("--calls", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--products", type=click.IntRange(min=1), default=10_000, show_default=True, help="Under a memory limit.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes for these products.")
@click.option("--seconds", type=float, default=math.inf, help="Stop with these products after so long.")
@click.option("--quick", is_flag=True, help="A few of everything: tries the script, also without a GPU.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Another file.")
def main(
    parts: tuple[str, ...], calls: int, products: int, jobs: int, seconds: float, quick: bool, output: Path | None
) -> None:
    if (quick or parts) and output is None:
        raise click.UsageError("--quick and --part are no record: they need --output")
    if not (quick or torch.cuda.is_available()):
        raise click.ClickException("no CUDA GPU: --quick tries the script without one")
    machine = _machine()
    torch.manual_seed(0)
    every = {
        "calls": lambda: count_calls(machine, 2000 if quick else calls, 64, 4, 2, 4 if quick else 20),
        "reuse": lambda: reuse_buffers(machine, 5 if quick else 1000),
        "capture": lambda: capture_beside_calls(machine, 5 if quick else 300),
        "chains": lambda: chain_links(machine, 2 if quick else 4, LINKS[:4] if quick else LINKS),
        "limits": lambda: limit_memory_in_processes(jobs, 20 if quick else products, seconds),
    }
    found = {}
    for name in parts or every:
        found[name] = every[name]()
        click.echo(f"{name}: {'ok' if found[name]['ok'] else 'WRONG'}")
    if output is None:
        output = RESULTS / record.gpu_slug(torch.cuda.get_device_name()) / "stress_runtime.json"
    record.save(record.document(**found), output)
    click.echo(f"recorded in {output}")
    sys.exit(not all(part["ok"] for part in found.values()))


if __name__ == "__main__":
    main()
