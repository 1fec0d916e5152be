"""What ``csrc/torch/autograd_fast_path.cc`` must know of this torch's dispatch keys, most of it found out by trying.

The stable ABI shows neither a tensor's set of dispatch keys nor the thread's. The shared library reads both from
memory: a word of the TensorImpl, which is searched for here with tensors whose sets Python knows, and the two words of
a thread's sets, whose meaning is compared with what Python says of them. Where anything is not as expected, the library
is told so, and sends every call through torch's dispatcher.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import c_uint64, c_void_p

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from hgemm_ops import _native

_AUTOGRAD = {DispatchKey.CUDA: DispatchKey.AutogradCUDA, DispatchKey.CPU: DispatchKey.AutogradCPU}
_IMPL_WORDS = 24  # to search in: it is the last one of a TensorImpl, the 22nd in torch 2.13


def _bits(keys: DispatchKeySet | DispatchKey) -> int:
    """A set as torch represents it."""
    return int((keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)).raw_repr())


def sample() -> list[Tensor]:
    """Tensors of which no two have the same set of keys."""
    plain = torch.empty(0, device="cpu")
    with torch.inference_mode():
        inference = torch.empty(0, device="cpu")
    return [
        plain,
        torch._neg_view(plain),
        torch.empty(0, device="cpu", dtype=torch.complex64).conj(),
        torch.empty(0, device="meta"),
        inference,
    ]


def find_word(library: ctypes.CDLL, addresses: Sequence[int], size: int, words: Sequence[int]) -> int | None:
    """Which one of the first ``size`` words at some addresses is these, one each; None if none is."""
    count = len(addresses)
    found = library.hgemm_find_word((c_void_p * count)(*addresses), size, (c_uint64 * count)(*words), count)
    return None if found < 0 else found


def find_key_word(library: ctypes.CDLL, tensors: Sequence[Tensor], sets: Sequence[int]) -> int | None:
    """Which word of a TensorImpl is its set of keys, given some tensors and their sets; None if that is not clear."""
    if len(set(sets)) < 3:
        return None
    return find_word(library, [t._cdata for t in tensors], _IMPL_WORDS, sets)


def find_defaults(read: Callable[[], tuple[int, int] | None]) -> tuple[int, int] | None:
    """The sets of keys, included and excluded, that every thread begins with; None if that is not clear.

    ``read`` gives the difference of this thread's to them, or None.
    """
    key = DispatchKey.Negative  # any that does nothing to what is no tensor
    states = (
        nullcontext(),
        torch._C._IncludeDispatchKeyGuard(key),
        torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(key)),
    )
    found: set[tuple[int, int] | None] = set()
    for state in states:
        with state:
            words = read()
            included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        found.add(None if words is None else (words[0] ^ _bits(included), words[1] ^ _bits(excluded)))
    return found.pop() if len(found) == 1 else None


def key_sets(library: ctypes.CDLL, backend: DispatchKey = DispatchKey.CUDA) -> _native.KeySets:
    """For ``hgemm_autograd_start`` of a library that has its kernels at ``backend`` and its autograd key."""

    def read() -> tuple[int, int] | None:
        words = (c_uint64 * 2)()
        return None if library.hgemm_thread_keys(words) else (words[0], words[1])

    sets = _native.KeySets(
        autograd_and_above=_bits(torch._C._dispatch_keyset_full()) & ~_bits(torch._C._after_autograd_keyset),
        dispatch_modes=_bits(DispatchKey.Python),
    )
    tensors = sample()
    word = find_key_word(library, tensors, [_bits(torch._C._dispatch_keys(t)) for t in tensors])
    defaults = find_defaults(read)
    if word is not None and defaults is not None:
        sets.key_word = word
        sets.included, sets.excluded = defaults
        # The ops that take this way have no kernel at the two keys left out, where every plain tensor passes.
        sets.below_autograd = _bits(torch._C._after_ADInplaceOrView_keyset) & ~_bits(DispatchKey.BackendSelect)
        sets.plain = _bits(backend)
        passed = _bits(_AUTOGRAD[backend]) | _bits(DispatchKey.ADInplaceOrView) | _bits(DispatchKey.BackendSelect)
        sets.from_python = _bits(torch._C._dispatch_keyset_full()) & ~(passed & ~sets.plain)
    return sets
