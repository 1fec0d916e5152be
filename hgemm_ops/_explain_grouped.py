"""``explain_grouped``: which kernel a grouped matmul gets, why, and why each other kernel cannot run it."""

from __future__ import annotations

from ctypes import byref, c_char_p

import torch
from torch import Tensor

from . import _devices, _explain, _native, _variants
from ._explain import Candidate, Explanation


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
    elif rows is None or N is None or K is None or groups is None:
        raise ValueError("explain_grouped: give either x and w or rows, N, K and groups")
    else:
        if layout not in _native.LAYOUTS.values():
            raise ValueError(f"explain_grouped: layout must be NN, NT, TN or TT, got {layout!r}")
        x, w = (
            torch.empty((*outer, *(shape if order == "N" else shape[::-1])), dtype=dtype, device="meta")
            for outer, shape, order in (((), (rows, K), layout[0]), ((groups,), (K, N), layout[1]))
        )
        x, w = (t if order == "N" else t.mT for t, order in zip((x, w), layout, strict=True))
    if 3 in (x.dim(), w.dim()):
        groups = (x if x.dim() == 3 else w).size(0)
    if groups is None or (x.dim(), w.dim()) not in ((2, 3), (2, 2), (3, 2)):
        raise ValueError(
            "explain_grouped: expected two matrices and the number of groups, or a matrix and a 3-D tensor, "
            f"got {tuple(x.shape)} and {tuple(w.shape)}"
        )
    if x.dtype != w.dtype or x.size(-1) != w.size(-2):
        raise ValueError(
            "explain_grouped: x and w must have one dtype and the last dimension of x must be the last but one of w, "
            f"got {_native.dtype_name(x.dtype)} {tuple(x.shape)} and {_native.dtype_name(w.dtype)} {tuple(w.shape)}"
        )
    problem = f"{_native.dtype_name(x.dtype)} {tuple(x.shape)} @ {tuple(w.shape)} in {groups} groups"
    return _explained(x, w, groups, problem, arch, numerics, float32)


def _explained(
    x: Tensor, w: Tensor, groups: int, problem: str, arch: str | None, numerics: str | None, float32: str | None
) -> Explanation:
    asked = _variants.resolve_choice(None, numerics, float32)
    taken = _native.GROUPED_DTYPES
    why = _explain.unsupported(x, taken) or _explain.unsupported(w, taken) or _explain.no_library()
    ordinal = x.device.index if arch is None and x.is_cuda else None
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
    views = [_native.view(t.shape, t.stride(), t.dtype, _native.alignment(_explain.address(t))) for t in (x, w)]
    query = _native.GroupedQuery(*views, groups, asked["numerics"], asked["float32"], as_torch=1)
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
