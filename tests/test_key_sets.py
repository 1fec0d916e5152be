"""What the shared library is told of torch's dispatch keys (``hgemm_ops/_key_sets.py``): right, or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C import DispatchKey, DispatchKeySet

from hgemm_ops import _key_sets, _library, _native

pytestmark = pytest.mark.skipif(not _library.load(), reason=f"no native library: {_library.reason()}")


def keys_of(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def test_this_torch_is_understood() -> None:
    sets = _key_sets.key_sets(_native.lib())
    assert sets.key_word > 0 and sets.plain == DispatchKeySet(DispatchKey.CUDA).raw_repr()
    assert sets.included == torch._C._dispatch_tls_local_include_set().raw_repr()
    assert sets.excluded == torch._C._dispatch_tls_local_exclude_set().raw_repr()


def test_the_word_holds_the_keys_of_other_tensors() -> None:
    word = _key_sets.key_sets(_native.lib()).key_word
    plain = torch.randn(3, 3)
    others = [
        plain,
        torch.nn.Parameter(plain),
        plain.to_sparse(),
        torch._efficientzerotensor((2,)),
    ]
    for tensor in others:
        words = (_key_sets.c_uint64 * (word + 1)).from_address(tensor._cdata)
        assert words[word] == keys_of(tensor)


def test_what_does_not_fit_is_refused() -> None:
    tensors = _key_sets.sample()
    sets = [keys_of(t) for t in tensors]
    assert len(set(sets)) == len(sets)
    assert _key_sets.find_key_word(_native.lib(), tensors, sets) is not None
    for i in range(len(sets)):
        wrong = [*sets[:i], sets[i] ^ 1 << 40, *sets[i + 1 :]]
        assert _key_sets.find_key_word(_native.lib(), tensors, wrong) is None
    assert _key_sets.find_key_word(_native.lib(), [tensors[0]] * 5, [sets[0]] * 5) is None  # says too little
    assert _key_sets.find_key_word(_native.lib(), [], []) is None


def test_the_thread_keys_must_follow_the_thread() -> None:
    words = (_key_sets.c_uint64 * 2)()

    def read(included: int = -1, excluded: int = -1) -> tuple[int, int]:
        assert _native.lib().hgemm_thread_keys(words) == 0
        return words[0] & included, words[1] & excluded

    assert _key_sets.find_defaults(read) is not None
    negative = DispatchKeySet(DispatchKey.Negative).raw_repr()
    for constant in (lambda: read(included=~negative), lambda: read(excluded=~negative), lambda: (0, 0), lambda: None):
        assert _key_sets.find_defaults(constant) is None


@pytest.mark.parametrize("lacking", ["hgemm_thread_keys", "hgemm_find_word"])
def test_without_either_every_call_takes_the_dispatcher(lacking: str) -> None:
    functions: dict[str, Any] = {
        "hgemm_thread_keys": _native.lib().hgemm_thread_keys,
        "hgemm_find_word": _native.lib().hgemm_find_word,
    }
    functions[lacking] = lambda *_: 1 if lacking == "hgemm_thread_keys" else -1
    sets = _key_sets.key_sets(SimpleNamespace(**functions))  # type: ignore[arg-type]
    assert sets.below_autograd == sets.plain == 0 and sets.autograd_and_above != 0


BELOW = (
    "Negative",
    "Conjugate",
    "ZeroTensor",
    "Functionalize",
    "FuncTorchDynamicLayerBackMode",
    "Python",
    "SparseCUDA",
    "SparseCsrCUDA",
    "NestedTensorCUDA",
    "QuantizedCUDA",
    "CPU",
    "Meta",
)
ABOVE = (
    "AutocastCUDA",
    "FuncTorchBatched",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchGradWrapper",
    "PreDispatch",
    "PythonTLSSnapshot",
)


@pytest.mark.parametrize("key", [*BELOW, *ABOVE])
def test_no_other_key_passes_for_plain(key: str) -> None:
    sets = _key_sets.key_sets(_native.lib())
    bits = DispatchKeySet(getattr(DispatchKey, key)).raw_repr()
    assert (bits | sets.plain) & sets.from_python != sets.plain
    if key in BELOW:
        assert (bits | sets.plain) & sets.below_autograd != sets.plain


def test_keys_where_plain_tensors_pass_do() -> None:
    sets = _key_sets.key_sets(_native.lib())
    on_cpu = _key_sets.key_sets(_native.lib(), DispatchKey.CPU)
    for tensor in (torch.empty(0), torch.nn.Parameter(torch.empty(0)), _key_sets.sample()[-1]):
        keys = (keys_of(tensor) | sets.included) & ~sets.excluded
        assert keys & on_cpu.below_autograd == keys & on_cpu.from_python == on_cpu.plain
