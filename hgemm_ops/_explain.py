"""``explain``: which kernel a matmul gets, why, and the times and eligibility of every other candidate."""

import math
import operator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from . import _devices, _library, _native, _tables, _variants
from .ops.activation import ACTIVATIONS


@dataclass(frozen=True)
class Candidate:
    """A kernel, or "torch", as a candidate for one matmul.

    ``predicted_us`` and ``measured_us`` are microseconds, or None where there is no such time. ``reason`` says why a
    kernel is not eligible. An eligible kernel that is ``forced_only`` runs this matmul only when it is named. The
    kernels that are made for batch-invariant results are ``forced_only`` unless ``numerics`` asks for such results, and
    their ``reason`` says so.
    """

    name: str
    eligible: bool
    reason: str = ""
    predicted_us: float | None = None
    measured_us: float | None = None
    family: str = "torch"
    forced_only: bool = False

    @property
    def us(self) -> float:
        """The measured time, else the predicted one, else infinity, in microseconds."""
        return self.measured_us or self.predicted_us or math.inf


@dataclass(frozen=True)
class Explanation:
    """The dispatcher's decision for one matmul.

    ``source`` is "forced", "table" (measured times decide), "model" (predicted times decide) or "fallback" (only torch
    can run it). ``reason`` is the explanation in words.
    """

    chosen: str
    source: str
    reason: str
    candidates: tuple[Candidate, ...]
    problem: str
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.table()

    def table(self, every: bool = False) -> str:
        """Returns the decision as text: the choice, then the other eligible candidates, ordered by time.

        With ``every``, the table also lists the kernels that cannot run the matmul, with the reasons, and those that
        run only when they are named. Otherwise one line counts them.
        """
        able = [c for c in self.candidates if c.name == self.chosen or (c.eligible and not c.forced_only)]
        able.sort(key=lambda c: (c.name != self.chosen, c.us))
        others = [c for c in self.candidates if c not in able]
        rows = [("kernel", "predicted us", "measured us", "")]
        rows += [(c.name, _us(c.predicted_us), _us(c.measured_us), c.reason) for c in able + others * every]
        a, b, c = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:3])
        lines = [f"{self.problem} on {self.device}: {self.chosen} ({self.source})", self.reason, ""]
        lines += [f"{x:<{a}}  {y:>{b}}  {z:>{c}}  {why}".rstrip() for x, y, z, why in rows]
        if others and not every:
            lines.append(f"({len(others)} more cannot run it, or run only when forced; --all lists them)")
        return "\n".join(lines)


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def explain(
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    M: int | None = None,
    N: int | None = None,
    K: int | None = None,
    dtype: torch.dtype = torch.float16,
    layout: str = "NN",
    batch: int = 1,
    alignment: int = 16,
    arch: str | None = None,
    activation: str | None = None,
    bias: bool = False,
    out_dtype: torch.dtype | None = None,
    variant: str | None = None,
    numerics: str | None = None,
    float32: str | None = None,
) -> Explanation:
    """Explains which kernel ``torch.matmul(a, b)``, or the matmul that the sizes describe, would run on. For int8 it
    explains ``torch._int_mm(a, b)``.

    It computes nothing, needs no GPU, and does not initialise CUDA. For a graph that torch.compile makes, it explains
    the matmuls that are left in the graph: inductor replaces those with a vector by code of its own.

    Args:
        a, b: the operands, with their own sizes, strides, dtype and device.
        M, N, K, dtype, layout, batch: describe contiguous operands where no tensors are given. ``layout`` has one
            letter each for A and B: N if the matrix is stored as it is, T if its transpose is stored. A linear layer is
            "NT".
        alignment: the number of bytes that the addresses of A and B are multiples of.
        arch: the GPU to decide for: "sm_80", "sm_86", "sm_89", "sm_90" or "sm_100". The default is the tensors' own
            device. Without tensors it is the current GPU, or "sm_90" where there is none. Before this process has
            initialised CUDA, that is the first visible GPU: a process of its own asks the driver for it, once.
        activation, bias, out_dtype: the epilogue.
        variant, numerics, float32: the name of a kernel and the modes, as for :func:`hgemm_ops.matmul`. Contexts are
            ignored.

    Raises:
        RuntimeError: the op would refuse the operands, the named kernel cannot run them, or ``numerics`` cannot be
            guaranteed.
        ValueError, TypeError: an argument is not valid.
    """
    act = activation or "none"
    if act not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)} or None, got {activation!r}")
    asked = {"act": ACTIVATIONS.index(act), "has_bias": bias, **_variants.resolve_choice(variant, numerics, float32)}
    if a is not None or b is not None:
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            raise TypeError(f"explain: expected two tensors, got {type(a).__name__} and {type(b).__name__}")
        if any(size is not None for size in (M, N, K)):
            raise ValueError("explain: give either a and b or M, N and K")
        return _explain_tensors(a, b, arch, out_dtype, asked)
    if M is None or N is None or K is None:
        raise ValueError(f"explain: give either a and b or M, N and K; got M={M}, N={N}, K={K}")
    require_sizes("explain", M=M, N=N, K=K, batch=batch)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"explain: dtype must be a torch.dtype, got {dtype!r}")
    if layout not in _native.LAYOUTS.values():
        raise ValueError(f"explain: layout must be NN, NT, TN or TT, got {layout!r}")
    if alignment not in (1, 2, 4, 8, 16):
        raise ValueError(f"explain: alignment must be 1, 2, 4, 8 or 16 bytes, got {alignment}")
    problem = f"{_native.dtype_name(dtype)} {layout} {f'{batch}x' if batch != 1 else ''}{M}x{N}x{K}"
    why = unsupported_dtype(dtype) or no_library()
    gpu = None if why or arch is not None else _devices.current()
    why = why or (gpu.fault if gpu else "")
    if why:
        return _fallback(problem, arch or "any device", why, asked)
    facts, device = named(gpu.ordinal, gpu.facts) if gpu else preset_facts(arch or "sm_90")
    query = _variants.matmul_query(M, N, K, dtype, layout, facts, batch, alignment)
    return _ask(query, problem, device, out_dtype, asked)


def require_sizes(function: str, **sizes: int) -> None:
    """Raises TypeError for a size that is not an integer, and ValueError for one that is negative or too large."""
    for name, size in sizes.items():
        try:
            operator.index(size)
        except TypeError:
            raise TypeError(f"{function}: {name} must be an integer, got {size!r}") from None
        if size < 0:
            raise ValueError(f"{function}: {name} must not be negative, got {size}")
        if size >= 2**63:
            raise ValueError(f"{function}: {name} must be less than 2**63, got {size}")


def _explain_tensors(
    a: Tensor, b: Tensor, arch: str | None, out_dtype: torch.dtype | None, asked: dict[str, int]
) -> Explanation:
    problem = f"{_native.dtype_name(a.dtype)} {_shape(a)} @ {_shape(b)}"
    device = arch or str(a.device)
    why = unsupported(a) or unsupported(b) or no_library()
    if not why and a.dtype != b.dtype:
        raise RuntimeError(
            f"explain: a and b must have one dtype, got {_native.dtype_name(a.dtype)} and {_native.dtype_name(b.dtype)}"
        )
    if not why and arch is None:
        if a.device != b.device:
            raise RuntimeError(f"explain: a and b must be on one device, got {a.device} and {b.device}")
        on_cuda, elsewhere = a.device.type == "cuda", f"our kernels need CUDA tensors, these are on {a.device}"
        why = _native.device_fault(a.device.index) if on_cuda else elsewhere
    if why:
        return _fallback(problem, device, why, asked)
    facts, device = preset_facts(arch) if arch else named(a.device.index, _native.device_facts(a.device.index))
    views = [_native.view(t.shape, t.stride(), t.dtype, _native.alignment(address(t))) for t in (a, b)]
    query = _native.query(views[0], views[1], facts)
    # A conjugate transpose is not a transpose.
    query.same_address = a.device.type != "meta" and address(a) == address(b) and a.is_conj() == b.is_conj()
    return _ask(query, problem, device, out_dtype, asked)


def _ask(
    query: _native.Query, problem: str, device: str, out_dtype: torch.dtype | None, asked: dict[str, int]
) -> Explanation:
    """Asks the dispatcher. ``asked`` has further fields of the query, by name."""
    for name, value in asked.items():
        setattr(query, name, value)
    if out_dtype is not None:
        of_int8 = _native.DTYPES[query.a.dtype] == torch.int8
        why = unsupported_dtype(out_dtype, (*_native.EXPLAINED_DTYPES, *[torch.int32] * of_int8))
        if why:
            return _fallback(problem, device, why, asked)
        query.out_dtype = _native.DTYPES.index(out_dtype)
    _tables.ensure()
    decision, candidates = _native.explain(query)
    if decision.variant == _native.UNKNOWN:
        raise RuntimeError(decision.reason.decode())
    return Explanation(
        chosen=_variants.name_of(decision.variant),
        source=_native.SOURCES[decision.source],
        reason=decision.reason.decode(),
        candidates=tuple(
            Candidate(
                name=_variants.name_of(c.variant),
                eligible=bool(c.eligible),
                reason=c.reason.decode(),
                predicted_us=_number(c.predicted_us),
                measured_us=_number(c.measured_us),
                family=_variants.family_of(c.variant),
                forced_only=bool(c.forced_only),
            )
            for c in candidates
        ),
        problem=problem,
        device=device,
    )


def _fallback(problem: str, device: str, why: str, asked: dict[str, int]) -> Explanation:
    """Returns the explanation of a matmul that torch runs without any kernel of ours being considered."""
    numerics = _native.NUMERICS[max(asked["numerics"], 0)]
    if numerics != "fast" and device != "cpu":
        if numerics == "batch_invariant_or_raise":
            raise RuntimeError(f"explain: numerics={numerics!r} is not possible for {problem}: {why}")
        why = f"not batch-invariant, because torch runs it: {why}"
    others = [
        Candidate(
            name=name,
            eligible=False,
            reason=why,
            family=_variants.family_of(id_),
            forced_only=_variants.is_forced_only(id_),
        )
        for id_, name in enumerate(_variants.names())
    ]
    return Explanation("torch", "fallback", why, (*others, Candidate("torch", eligible=True)), problem, device)


def no_library() -> str:
    return "" if _library.load() else f"no native library: {_library.reason()}"


def unsupported_dtype(dtype: torch.dtype, taken: tuple[torch.dtype, ...] = _native.EXPLAINED_DTYPES) -> str:
    names = ", ".join(map(_native.dtype_name, taken))
    return "" if dtype in taken else f"our kernels support {names}, not {_native.dtype_name(dtype)}"


def unsupported(t: Tensor, taken: tuple[torch.dtype, ...] = _native.EXPLAINED_DTYPES) -> str:
    if t.is_nested:
        return "torch runs nested tensors"
    if t.layout != torch.strided:
        return f"torch runs tensors of layout {t.layout}"
    if type(t) not in (Tensor, torch.nn.Parameter):
        return f"torch runs tensors of type {type(t).__name__}"
    return unsupported_dtype(t.dtype, taken)


def address(t: Tensor) -> int:
    """Returns the address of a tensor's data.

    For a meta tensor it returns the storage offset in bytes: its storage counts as aligned as a new allocation.
    """
    return int(t.storage_offset()) * t.element_size() if t.device.type == "meta" else t.data_ptr()


def preset_facts(arch: str) -> tuple[_native.Facts, str]:
    known = {f"sm_{cc}": cc for cc in _native.chips()}
    if arch not in known:
        raise ValueError(f"explain: arch must be one of {', '.join(known)}, got {arch!r}")
    return _native.preset_facts(known[arch]), arch


def named(ordinal: int, facts: _native.Facts) -> tuple[_native.Facts, str]:
    return facts, f"cuda:{ordinal} (sm_{facts.cc})"


def _shape(t: Tensor) -> str:
    return "(nested)" if t.is_nested else f"({', '.join(map(str, t.shape))})"
