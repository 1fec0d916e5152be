"""Nothing but a product on a GPU asks the driver. ``test_gpu_driver.py`` forks afterwards, on a machine with a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from click.testing import CliRunner
from helpers import ROOT, needs_library
from torch import nn

import hgemm_ops
from hgemm_ops import _devices, _native, _override, _tables, use_custom_gemm
from hgemm_ops.cli import main
from hgemm_ops.cli.doctor import _CHECKS

PROBE = ROOT / "hgemm_ops" / "_probe.py"
#: What torch has that may initialise CUDA.
ASKS = ("init", "_lazy_init", "is_available", "device_count", "current_device", "get_device_name",
        "get_device_capability", "get_device_properties", "current_stream")  # fmt: skip


def refuse(*arguments: Any) -> NoReturn:
    raise AssertionError("the driver was asked")


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch with CUDA in a process that has not initialised it, and that may not do so."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(_devices, "no_cuda", lambda: "")
    monkeypatch.setattr(_devices, "_asked", lambda *environment: [GPU])
    for name in ASKS:
        monkeypatch.setattr(torch.cuda, name, refuse)
    monkeypatch.setattr(_native, "device_facts", refuse)
    if _native.lib().hgemm_has_device_code():
        monkeypatch.setattr(_native, "device_fault", refuse)
    yield


#: A GPU that no chip of the dispatcher's list is equal to.
GPU = {
    "name": "NVIDIA RTX 1",
    "facts": {
        "cc": 86,
        "sm_count": 10,
        "smem_optin": 101376,
        "smem_per_sm": 102400,
        "l2_bytes": 1 << 20,
        "dram_gbs": 448,
        "slow_float64": 0,
    },
}


def use_a_context(**arguments: Any) -> None:
    layer, x = nn.Linear(4, 5), torch.ones(2, 4)
    with use_custom_gemm(**arguments) as report:
        layer(x).sum().backward()
    assert report.rows == [] and str(report)

    @use_custom_gemm(**arguments)
    def steps() -> Iterator[torch.Tensor]:
        yield layer(x)

    assert len(list(steps())) == 1
    try:
        enabled = hgemm_ops.enable(**arguments)
        layer(x).sum().backward()
        assert enabled.rows == [] and str(enabled)
    finally:
        hgemm_ops.disable()


@needs_library
@pytest.mark.parametrize("starts", [True, False])
def test_contexts_ask_no_driver(starts: bool, no_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: starts)
    monkeypatch.setattr(_override, "reason", lambda: None if starts else "there is no compiler")
    use_a_context()
    use_a_context(float32="split", numerics="fast", sites=True, tune=True, variant="torch")
    if starts:
        use_a_context(numerics="batch_invariant")
    else:
        with pytest.raises(RuntimeError, match="'batch_invariant' is not possible: there is no compiler"):
            use_a_context(numerics="batch_invariant")


@needs_library
def test_the_override_starts_without_the_driver(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "_compile", lambda: PROBE)  # no library: ctypes says so
    _override.reason.__wrapped__()


@needs_library
def test_questions_ask_no_driver(no_driver: None) -> None:
    assert hgemm_ops.variants()
    has_code = _native.lib().hgemm_has_device_code()
    here = hgemm_ops.explain(M=64, N=64, K=64)
    assert here.device == ("cuda:0 (sm_86)" if has_code else "any device")
    assert hgemm_ops.explain(M=64, N=64, K=64, arch="sm_90").device == "sm_90"
    assert hgemm_ops.explain(torch.ones(2, 2), torch.ones(2, 2)).chosen == "torch"
    hgemm_ops.matmul(torch.ones(2, 2), torch.ones(2, 2))
    _tables.ensure()
    _tables.reload()
    for command in (["info"], ["info", "--json"], ["explain", "64", "64", "64"], ["explain", "--help"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        if has_code and command == ["info", "--json"]:
            facts = {name: GPU["facts"][name] for name in ("cc", "sm_count", "l2_bytes", "dram_gbs")}  # type: ignore[index]
            expected = {"ordinal": 0, "name": "NVIDIA RTX 1", **facts, "tuned_shapes": 0}
            assert json.loads(result.output)["devices"] == [expected]
    for check in _CHECKS[:4]:
        check()


@needs_library
def test_a_machine_that_cannot_be_asked(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "_asked", lambda *environment: None)
    assert hgemm_ops.explain(M=64, N=64, K=64).device == "sm_90"
    assert _devices.visible() == () and _devices.may_exist()


@pytest.mark.parametrize("broken", ["an executable that is none", "text that is not JSON", "a failure", "frozen"])
def test_a_process_that_fails_is_no_error(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "an executable that is none":
        monkeypatch.setattr(sys, "executable", "/dev/null")
    elif broken == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(sys, "executable", shutil.which("echo" if broken == "text that is not JSON" else "false"))
    assert _devices._asked.__wrapped__() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a driver")
def test_the_probe_without_a_driver() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", PROBE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


#: A driver with two GPUs. cuInit adds the process to the file that the environment names.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned flags) {
  FILE* file = fopen(getenv("INITIALISED"), "a");
  fprintf(file, "%d\n", (int)getpid());
  fclose(file);
  return getenv("NO_DEVICE") != 0 ? 100 : 0;
}
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, length, "NVIDIA RTX %d", device + 1);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = 10; return 0;
    case 36: *value = 7000000; return 0;
    case 37: *value = 256; return 0;
    case 38: *value = 1 << 20; return 0;
    case 75: *value = 8; return 0;
    case 76: *value = 6; return 0;
    case 81: *value = 102400; return 0;
    case 97: *value = 101376; return 0;
  }
  return 1;
}
"""


@needs_library
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_only_another_process_initialises_the_driver(tmp_path: Path) -> None:
    source, log = tmp_path / "driver.c", tmp_path / "initialised"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1"], check=True)
    code = """
import json, os, sys
import torch
torch.version.cuda = "13.0"
from torch import nn
import hgemm_ops
from hgemm_ops import _devices, use_custom_gemm
with use_custom_gemm() as report:
    nn.Linear(8, 8)(torch.ones(2, 8))
str(report)
hgemm_ops.variants()
assert not os.path.exists(os.environ["INITIALISED"])
for _ in range(3):
    device = hgemm_ops.explain(M=64, N=64, K=64).device
gpus = [(gpu.name, {name: getattr(gpu.facts, name) for name, _ in gpu.facts._fields_}) for gpu in _devices.visible()]
print(json.dumps([os.getpid(), device, gpus]))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    environment |= {
        "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "INITIALISED": str(log),
        "HGEMM_OPS_CACHE_DIR": str(tmp_path),
    }
    for hidden in (False, True):
        environment |= {"NO_DEVICE": "1"} if hidden else {}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        own, device, gpus = json.loads(done.stdout)
        asked = log.read_text().split()
        assert len(asked) == 1 and asked != [str(own)]
        if hidden:
            assert (device, gpus) == ("sm_90", [])
        else:
            assert device == ("cuda:0 (sm_86)" if _native.lib().hgemm_has_device_code() else "any device")
            assert gpus == [[f"NVIDIA RTX {i + 1}", GPU["facts"]] for i in range(2)]
        log.unlink()
