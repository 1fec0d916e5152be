"""Nothing but a product on a GPU initialises CUDA: until then a process may fork children that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, ON_GPU

from hgemm_ops import _devices, _native

pytestmark = pytest.mark.gpu

#: What the code of every process here begins with.
FORK = """
import os, sys
import torch
from torch import nn
import hgemm_ops
from hgemm_ops import use_custom_gemm

def forked(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def product():
    a = torch.randn(512, 512).cuda().half()
    expected = a.double() @ a.double()
    with use_custom_gemm() as report:
        got = a @ a
    assert torch.cuda.is_initialized() and (got.double() - expected).abs().max() < 0.1
    assert [row.calls for row in report.rows] == [1], report

def untouched():
    assert not torch.cuda.is_initialized()
"""


def run(code: str, **environment: str) -> None:
    """Runs code in a new process, after ``FORK``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HGEMM_OPS_")}
    inherited["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    done = subprocess.run(
        [sys.executable, "-c", FORK + code], env=inherited | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


needs_fork = pytest.mark.skipif(not ON_GPU, reason="a GPU in a child")

#: What leaves CUDA alone. A backward pass and torch.compile do not: they are torch's, and ask for the devices.
WITHOUT_CUDA = {
    "import": "",
    "variants": "assert hgemm_ops.variants()",
    "explain": "print(hgemm_ops.explain(M=64, N=64, K=64), hgemm_ops.explain(torch.ones(2, 2), torch.ones(2, 2)))",
    "a context": """
with use_custom_gemm() as report:
    nn.Linear(8, 8)(torch.ones(2, 8))
print(report, report.to_dict())""",
    "all of a context": """
with use_custom_gemm(tune=True, sites=True, float32="split", numerics="batch_invariant") as report:
    nn.Linear(8, 8)(torch.ones(2, 8))
report.save(os.environ["REPORT"])""",
    "enable": "hgemm_ops.enable(tune=True, sites=True, numerics='batch_invariant')\nhgemm_ops.enable()",
    "the ops": """
hgemm_ops.matmul(torch.ones(4, 4), torch.ones(4, 4))
hgemm_ops.linear(torch.ones(2, 4), torch.ones(3, 4))""",
    "tables": "from hgemm_ops import _tables; _tables.ensure(); _tables.reload(); _tables.read_all()",
    "commands": """
from click.testing import CliRunner
from hgemm_ops.cli import main
from hgemm_ops.cli.doctor import _CHECKS
for arguments in (["info"], ["info", "--json"], ["explain", "64", "64", "64"], ["--help"]):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
print([check() for check in _CHECKS[:4]])""",
}


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("work", WITHOUT_CUDA)
def test_a_process_forks_afterwards(work: str, tmp_path: Path) -> None:
    run(
        f"{WITHOUT_CUDA[work]}\nuntouched()\nforked(product)\nforked(product)\nproduct()",
        REPORT=str(tmp_path / "report.json"),
    )


@needs_fork
@pytest.mark.slow
def test_a_process_forks_inside_of_a_context() -> None:
    run("""
with use_custom_gemm() as report:
    nn.Linear(8, 8)(torch.ones(2, 8))
    untouched()
    def work():
        a = torch.ones(64, 64).cuda().half()
        a @ a
        assert [row.calls for row in report.rows] == [1], report
    forked(work)
forked(product)
""")


@needs_fork
@pytest.mark.slow
def test_data_loaders_and_multiprocessing_fork_afterwards() -> None:
    run("""
import multiprocessing
with use_custom_gemm():
    nn.Linear(8, 8)(torch.ones(2, 8))
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.starmap(product, [()] * 4)
untouched()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        with use_custom_gemm():
            return nn.Linear(8, 8)(torch.ones(2, 8)).detach()
for _ in range(2):
    with use_custom_gemm():
        assert len(list(torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork"))) == 4
    product()
""")


@needs_fork
@pytest.mark.slow
def test_a_child_of_a_process_that_uses_cuda_enters_a_context() -> None:
    run("""
torch.ones(1).cuda()
def work():
    assert hgemm_ops.explain(M=64, N=64, K=64).device.startswith("cuda:0 ")
    with use_custom_gemm(tune=True) as report:
        nn.Linear(8, 8)(torch.ones(2, 8))
    print(report)
forked(work)
product()
forked(work)
""")


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_context_from_before_cuda_serves_the_first_products(compiled: bool) -> None:
    run(f"""
import threading
def multiply(a):
    return a @ a
work = torch.compile(multiply) if {compiled} else multiply
def product_of_a_thread():
    a = torch.randn(512, 512).half().cuda()
    work(a)
    torch.bmm(a[None], a[None])
chosen = hgemm_ops.explain(M=512, N=512, K=512).chosen
with use_custom_gemm() as report:
    untouched()
    product_of_a_thread()
    thread = threading.Thread(target=product_of_a_thread)
    thread.start()
    thread.join()
rows = {{(row.op, row.variant): row.calls for row in report.rows}}
assert sum(rows.values()) == 4 and rows["mm", chosen] >= 2, report
""")


@needs_fork
@pytest.mark.slow
def test_without_a_visible_gpu() -> None:
    run(
        """
with use_custom_gemm() as report:
    nn.Linear(8, 8)(torch.ones(2, 8))
assert "this process has not used CUDA" in str(report), report
with use_custom_gemm(numerics="batch_invariant"):
    pass
assert hgemm_ops.explain(M=64, N=64, K=64).device == "sm_90"
""",
        CUDA_VISIBLE_DEVICES="",
    )


@pytest.mark.skipif(not ON_GPU, reason="the driver")
def test_the_driver_says_in_another_process_what_it_says_here() -> None:
    torch.ones(1, device=DEVICE)
    asked = _devices._asked(*_devices._environment())
    assert asked is not None and len(asked) == torch.cuda.device_count()
    for ordinal, gpu in enumerate(asked):
        here = _native.device_facts(ordinal)
        assert gpu["name"] == torch.cuda.get_device_name(ordinal)
        assert gpu["facts"] == {name: getattr(here, name) for name, _ in _native.Facts._fields_}
    gpu_here = _devices.current()
    assert gpu_here is not None and gpu_here.ordinal == torch.cuda.current_device() and not gpu_here.fault
