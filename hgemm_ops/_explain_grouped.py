"""``explain_grouped``: which kernel a grouped matmul gets, why, and why each other kernel cannot run it."""

from __future__ import annotations

from ctypes import byref, c_char_p
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _devices, _explain, _native, _variants
from ._explain import Candidate, Explanation


@dataclass(frozen=True)
class _Operand:
    """An operand as the library sees it. ``fault`` says why no kernel takes it, or is ""."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    fault: str
    align: int = 16
    ordinal: int | None = None  # of its GPU

    @classmethod
    def of(cls, t: Tensor) -> _Operand:
        shape, fault = tuple(t.shape), _explain.unsupported(t, _native.GROUPED_DTYPES)
        if fault:
            return cls(shape, (), t.dtype, fault)
        ordinal = t.device.index if t.is_cuda else None
        return cls(shape, t.stride(), t.dtype, "", _native.alignment(_explain.address(t)), ordinal)

    @classmethod
    def stored(cls, shape: tuple[int, ...], order: str, dtype: torch.dtype) -> _Operand:
        """A contiguous operand, or one whose matrices are stored as their transposes if ``order`` is T."""
        rows, columns = shape[-2:]
        strides = (rows * columns, *((columns, 1) if order == "N" else (1, rows)))
        return cls(shape, strides[-len(shape) :], dtype, _explain.unsupported_dtype(dtype, _native.GROUPED_DTYPES))

    @property
    def view(self) -> _native.Tensor:
        return _native.view(self.shape, self.strides, self.dtype, self.align)

    def __str__(self) -> str:
        return f"{_native.dtype_name(self.dtype)} {self.shape}"


def explain_grouped(
    x: Tensor | None = None,
    w: Tensor | None = None,
    groups: int | None = None,
    *,
    rows: int | None = None,
    N: int | None = None,
    K: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "NT",
    arch: str | None = None,
    numerics: str | None = None,
    float32: str | None = None,
) -> Explanation:
    """Explains which kernel ``torch.nn.functional.grouped_mm`` would run on in a context.

    It computes nothing, needs no GPU, and does not initialise CUDA. The choice does not depend on the sizes of the
    groups, which the host never reads: the kernels are chosen by the rows that a group has on average.

    Args:
        x, w: the operands in any form that :func:`hgemm_ops.grouped_mm` takes with ``offs``.
        groups: the number of groups. Where an operand is 3-D it has that number.
        rows, N, K, dtype, layout: describe ``x (rows, K)`` and ``w (groups, K, N)`` where no tensors are given.
            ``layout`` has one letter each for x and w: N if the matrix is stored as it is, T if its transpose is.
            The weights of linear layers are "NT".
        arch: as for :func:`hgemm_ops.explain`.
        numerics, float32: the modes, as for :func:`hgemm_ops.matmul`. Contexts are ignored.

    Raises:
        ValueError, TypeError: an argument is not valid.
    """
    if x is not None or w is not None:
        if not isinstance(x, Tensor) or not isinstance(w, Tensor):
            raise TypeError(f"explain_grouped: expected two tensors, got {type(x).__name__} and {type(w).__name__}")
        a, b = _Operand.of(x), _Operand.of(w)
    elif rows is None or N is None or K is None or groups is None:
        raise ValueError("explain_grouped: give either x and w or rows, N, K and groups")
    else:
        _explain.require_sizes("explain_grouped", rows=rows, N=N, K=K, groups=groups)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"explain_grouped: dtype must be a torch.dtype, got {dtype!r}")
        if layout not in _native.LAYOUTS.values():
            raise ValueError(f"explain_grouped: layout must be NN, NT, TN or TT, got {layout!r}")
        a, b = _Operand.stored((rows, K), layout[0], dtype), _Operand.stored((groups, K, N), layout[1], dtype)
    if 3 in (len(a.shape), len(b.shape)):
        groups = (a if len(a.shape) == 3 else b).shape[0]
    if groups is None or (len(a.shape), len(b.shape)) not in ((2, 3), (2, 2), (3, 2)):
        raise ValueError(
            "explain_grouped: expected two matrices and the number of groups, or a matrix and a 3-D tensor, "
            f"got {a.shape} and {b.shape}"
        )
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            "explain_grouped: x and w must have one dtype and the last dimension of x must be the last but one of w, "
            f"got {a} and {b}"
        )
    return _explained(a, b, groups, f"{a} @ {b.shape} in {groups} groups", arch, numerics, float32)


def _explained(
    a: _Operand, b: _Operand, groups: int, problem: str, arch: str | None, numerics: str | None, float32: str | None
) -> Explanation:
    asked = _variants.resolve_choice(None, numerics, float32)
    why = a.fault or b.fault or _explain.no_library()
    ordinal = a.ordinal if arch is None else None
    gpu = None if why or arch is not None or ordinal is not None else _devices.current()
    why = why or (gpu.fault if gpu else "")
    if why:
        return Explanation(
            "torch", "fallback", why, (Candidate("torch", eligible=True),), problem, arch or "any device"
        )
    if ordinal is not None:
        facts, device = _explain.named(ordinal, _native.device_facts(ordinal))
    elif gpu:
        facts, device = _explain.named(gpu.ordinal, gpu.facts)
    else:
        facts, device = _explain.preset_facts(arch or "sm_90")
    query = _native.GroupedQuery(a.view, b.view, groups, asked["numerics"], asked["float32"], as_torch=1)
    reason = c_char_p()
    kernel = _native.lib().hgemm_grouped_choice(query, facts, byref(reason))
    if kernel == _native.UNKNOWN or reason.value is None:
        raise RuntimeError(_native.lib().hgemm_last_error().decode())
    source, _, words = reason.value.decode().partition(": ")
    candidates = []
    for index, name in enumerate(_native.grouped_names()):
        refusal = _native.lib().hgemm_grouped_refusal(index, query, facts).decode()
        candidates.append(Candidate(name, not refusal, refusal, family=name.partition("_grouped")[0]))
    names = _native.grouped_names()
    return Explanation(
        chosen="torch" if kernel == _native.TORCH else names[kernel],
        source=source,
        reason=words,
        candidates=(*candidates, Candidate("torch", eligible=True)),
        problem=problem,
        device=device,
    )
