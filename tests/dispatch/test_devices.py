"""Devices on which the library cannot run: it warns once for each, and torch computes every call there."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from helpers import counted, needs_library

import hgemm_ops
from hgemm_ops import _devices, _native, _override, _variants
from hgemm_ops.cli import main

pytestmark = needs_library

# cudaError_t
INSUFFICIENT_DRIVER, NO_KERNEL_IMAGE, UNSUPPORTED_PTX, ILLEGAL_ADDRESS = 35, 209, 222, 700


def fault(archs: str, cc: int, status: int = 0) -> str:
    text: bytes = _native.lib().hgemm_fault_of(archs.encode(), cc, status)
    return text.decode()


@pytest.mark.parametrize(
    ("archs", "runs_on", "not_on"),
    [
        ("80 90 90a", [80, 86, 87, 89, 90, 100, 103, 120], []),
        ("80", [80, 86, 89, 90, 100, 120], []),
        ("80 90a", [80, 86, 89, 90, 100, 120], []),  # PTX of sm_80
        ("86", [86, 87, 89, 90, 100], [80]),
        ("89 90a", [89, 90, 100], [80, 86]),
        ("80 100", [80, 86, 89, 100, 103, 120], [90]),  # no machine code, and the PTX is for sm_100
        ("90a", [90], [80, 86, 89, 100, 120]),  # with a letter: machine code for one chip, and no PTX
        ("90a 100a", [90, 100], [80, 89, 103, 120]),
        ("90 90a", [90, 100, 120], [80, 86, 89]),
        ("", [80, 90, 120], []),
    ],
)
def test_a_build_runs_where_it_has_code(archs: str, runs_on: list[int], not_on: list[int]) -> None:
    assert {cc: fault(archs, cc) for cc in runs_on} == dict.fromkeys(runs_on, "")
    for cc in not_on:
        assert fault(archs, cc).startswith(
            f"this library was built for {archs}, and none of these runs on sm_{cc}: rebuild with"
        )
        assert fault(archs, cc).endswith("HGEMM_CUDA_ARCHS=90a" if cc == 90 else f"HGEMM_CUDA_ARCHS={cc}")


def test_what_cuda_answers_is_explained() -> None:
    assert "the NVIDIA driver does not support CUDA 1" in fault("80 90 90a", 0, INSUFFICIENT_DRIVER)
    assert "update the driver, or rebuild with a CUDA toolkit" in fault("80 90 90a", 0, INSUFFICIENT_DRIVER)
    for status in (NO_KERNEL_IMAGE, UNSUPPORTED_PTX):
        assert fault("80 90 90a", 120, status).endswith(
            "none of these runs on sm_120: rebuild with HGEMM_CUDA_ARCHS=120"
        )
    assert "illegal memory access" in fault("80 90 90a", 90, ILLEGAL_ADDRESS)
    for archs in ("80 90 90a", "75", ""):
        assert fault(archs, 75) == "the kernels need sm_80 or newer, this GPU is sm_75"


def facts(cc: int) -> _native.Facts:
    known = _native.preset_facts(90)
    known.cc = cc
    return known


def test_no_kernel_is_eligible_on_sm_75() -> None:
    decision, candidates = _native.explain(_variants.matmul_query(64, 64, 64, torch.float16, "NN", facts(75)))
    assert (decision.variant, _native.SOURCES[decision.source]) == (_native.TORCH, "fallback")
    assert [c.eligible for c in candidates] == [0] * (len(candidates) - 1) + [1]


def test_the_library_knows_what_it_was_built_for() -> None:
    """Eligibility depends on the build's architectures, not on those that kernels are written for."""
    for cc in (70, 75, 80, 86, 89, 90, 100, 120):
        query = _variants.matmul_query(64, 64, 64, torch.float16, "NN", facts(cc))
        able = any(c.eligible for c in _native.explain(query)[1][:-1])
        assert able == (_native.lib().hgemm_fault_of(None, cc, 0) == b""), cc


# ---- A call on a device that cannot be used. No GPU is needed: this machine's driver has no such device


class Operand(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class Product(ctypes.Structure):
    _fields_ = [
        *((name, Operand) for name in "abcd"),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("op", "act", "out_dtype", "ordinal", "in_backward", "allows_tf32")),
        *((name, ctypes.c_int32) for name in ("left", "reserved")),
        ("stream", ctypes.c_void_p),
    ]


class Api(ctypes.Structure):
    _fields_ = [
        ("sizes", ctypes.c_int32 * 6),
        ("active", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("plan", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Product), ctypes.c_void_p)),
        ("plan_with_less", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
        ("plan_grouped", ctypes.c_void_p),
        ("plan_grouped_with_less", ctypes.c_void_p),
        ("launch_grouped", ctypes.c_void_p),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


@pytest.fixture
def api() -> Api:
    table = Api.from_address(_native.lib().hgemm_gemm_api())
    assert table.sizes[:2] == [ctypes.sizeof(Api), ctypes.sizeof(Product)]
    return table


MISSING = 63  # a device that no machine has


def product(ordinal: int, dtype: torch.dtype = torch.float16) -> Product:
    sizes, strides = (ctypes.c_int64 * 2)(64, 64), (ctypes.c_int64 * 2)(64, 1)
    operand, none = Operand(256, sizes, strides, 2, _native.DTYPES.index(dtype)), Operand(None, None, None, -1, 0)
    return Product(operand, operand, none, none, 1.0, 1.0, op=_native.OPS.index("mm"), ordinal=ordinal)


def test_products_there_are_torchs_with_one_line_of_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    plan = ctypes.create_string_buffer(4096)
    with counted() as tally, caplog.at_level(logging.WARNING, "hgemm_ops"):
        for _ in range(3):
            assert api.plan(product(MISSING), plan) == 0  # HGEMM_TORCH
        (row,) = tally.rows()
    assert (row.calls, row.variant) == (3, _native.TORCH)
    assert b"cannot run on this GPU" in _native.lib().hgemm_left_reason(row.left)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"cuda:{MISSING}: ") and line.endswith("; torch runs every matmul on this GPU")
    assert _native.device_fault(MISSING) in line and _native.device_fault(MISSING) != ""


def test_a_kernel_that_was_asked_for_there_is_refused_with_the_reason(api: Api) -> None:
    plan = ctypes.create_string_buffer(4096)
    with counted(0):
        assert api.plan(product(MISSING - 1), plan) == -1  # HGEMM_REFUSED
        assert _variants.name_of(0) in api.error().decode() and "cannot run" in api.error().decode()


@pytest.fixture
def numerics() -> Iterator[Callable[[str], object]]:
    """A function that enters a context with these numerics, inside the active ones."""
    with contextlib.ExitStack() as stack:
        yield lambda mode: stack.enter_context(counted(_native.AUTO, _native.NUMERICS.index(mode)))


def test_what_must_not_vary_is_refused_there(api: Api, numerics: Callable[[str], object]) -> None:
    plan, single = ctypes.create_string_buffer(4096), product(MISSING, torch.float32)
    with counted() as tally:
        numerics("batch_invariant")
        assert api.plan(product(MISSING), plan) == -1  # HGEMM_REFUSED
        text = api.error().decode()
        assert "batch_invariant" in text and "float16 NN 64x64x64" in text
        assert _native.device_fault(MISSING) in text
        assert (
            api.plan(single, plan) == 0
        )  # float32 has no batch-invariant kernels: torch computes it, and the report says so
        numerics("batch_invariant_or_raise")
        assert api.plan(single, plan) == -1 and "float32" in api.error().decode()
        numerics("fast")
        assert api.plan(product(MISSING), plan) == 0
        reported = [(row.dtype, _native.NUMERICS[row.numerics]) for row in tally.rows()]
    assert sorted(reported) == [(0, "fast"), (2, "batch_invariant")]


@pytest.mark.parametrize("why", range(1, 6))
def test_what_torch_would_take_undecided_is_refused(api: Api, numerics: Callable[[str], object], why: int) -> None:
    reason = _native.lib().hgemm_left_reason(why).decode()
    plan, left = ctypes.create_string_buffer(4096), product(MISSING)
    left.left = why
    with counted() as tally:
        assert api.plan(left, plan) == 0
        numerics("batch_invariant")
        assert api.plan(left, plan) == -1
        assert (reason if why < 5 else _native.device_fault(MISSING)) in api.error().decode()
        assert sum(row.calls for row in tally.rows()) == 1


# ---- The same device in Python


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU that torch can use and this library cannot. The value is the reason."""
    reason = fault("80 90 90a", 0, INSUFFICIENT_DRIVER)
    monkeypatch.setattr(_devices, "no_cuda", lambda: "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda ordinal=0: "NVIDIA T4")
    monkeypatch.setattr(_override, "reason", lambda: None)
    monkeypatch.setattr(_native, "device_fault", lambda ordinal: reason)
    return reason


def refuse(*arguments: Any) -> None:
    raise RuntimeError("the device's attributes cannot be read")


def test_explain_says_why_it_is_torch(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "device_facts", refuse)
    explanation = hgemm_ops.explain(M=64, N=64, K=64)
    assert (explanation.chosen, explanation.source, explanation.reason) == ("torch", "fallback", unusable)
    assert hgemm_ops.explain(M=64, N=64, K=64, arch="sm_90").source != "fallback"  # explains for another device


def test_doctor_says_what_to_do(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "device_facts", refuse)
    result = CliRunner().invoke(main, ["doctor", "--json"])
    findings = {f["check"]: f for f in json.loads(result.output)}
    assert findings["device"] == {
        "check": "device",
        "status": "broken",
        "text": f"NVIDIA T4: {unusable}; torch runs every matmul on this GPU",
    }
    assert findings["table"]["status"] == "note" and result.exit_code == 1


@pytest.mark.parametrize("command", [["tune", "--shapes", "8x8x8"], ["bench"]], ids=["tune", "bench"])
def test_measuring_ends_with_the_reason(unusable: str, command: list[str]) -> None:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1 and "the NVIDIA driver does not support CUDA" in result.output


def test_info_lists_what_can_be_used(unusable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "device_facts", refuse)
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0 and "devices   none that our kernels run on" in result.output
