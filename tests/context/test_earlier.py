"""csrc/aten/earlier.h: what ran an operator before the override. Here on the CPU, with a door of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import ROOT, run_python

from hgemm_ops import _aten_build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),
]

# What every script starts with. ``counts()`` has the calls since the last one: of torch's own functions, and of
# another package's kernels.
_START = """
import ctypes, sys, torch
from torch import library
door = ctypes.PyDLL({library!r})
a, b = torch.randn(3, 4), torch.randn(4, 5)
exact = a @ b
seen = []
last = (0, 0)

def counts():
    global last
    now = (door.calls_of_torch(), door.calls_of_other() + len(seen))
    last, before = now, last
    return now[0] - before[0], now[1] - before[1]

def products():
    out, c = torch.empty(3, 5), torch.ones(3, 5)
    results = [torch.mm(a, b), torch.mm(a, b, out=out), c.addmm_(a, b, beta=2, alpha=3)]
    assert results[1] is out and results[2] is c
    return results

def check_torchs(results):
    torch.testing.assert_close(results, [exact, exact, 2 + 3 * exact])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    include = tmp_path_factory.mktemp("earlier")
    (include / "aten").mkdir()
    shutil.copy(ROOT / "csrc/aten/earlier.h", include / "aten")
    shutil.copy(Path(__file__).with_name("earlier.cc"), include / _aten_build.SOURCES[0])
    made = include / "earlier.so"
    command = _aten_build.command(["c++"], include, Path(torch.__file__).parent, made)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def check(library: Path, script: str) -> None:
    __tracebackhide__ = True
    done = run_python(_START.format(library=str(library)) + script)
    assert done.returncode == 0, done.stderr


def test_torchs_own_kernels_are_called_directly(library: Path) -> None:
    check(
        library,
        """
door.install()
check_torchs(products())
assert counts() == (3, 0)
""",
    )


# Registers Python functions. Two look at nothing but their arguments; addmm_ calls what it found, and writes in place.
_IN_PYTHON = """
package = library.Library("aten", "IMPL")

def mm(x, y):
    seen.append("mm")
    return x.new_full((x.shape[0], y.shape[1]), 7)

def mm_out(x, y, *, out):
    seen.append("mm.out")
    return out.fill_(7)

def addmm_(keys, c, x, y, *, beta=1, alpha=1):
    seen.append((beta, alpha))
    return theirs.call_boxed(keys, c, x, y, beta=beta, alpha=alpha)

def register():
    global theirs
    theirs = library.get_kernel("aten::addmm_", "CPU")
    package.impl("mm", mm, "CPU")
    package.impl("mm.out", mm_out, "CPU")
    package.impl("addmm_", addmm_, "CPU", with_keyset=True)
"""


def test_an_override_in_python_before(library: Path) -> None:
    check(
        library,
        _IN_PYTHON
        + """
register()
door.install()
for _ in range(3):
    first, second, third = products()
    assert (first == 7).all() and (second == 7).all()
    torch.testing.assert_close(third, 2 + 3 * exact)
    assert counts() == (0, 3)
assert seen[-3:] == ["mm", "mm.out", (2, 3)], seen

import threading
threads = [threading.Thread(target=lambda: [products() for _ in range(50)]) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert counts() == (0, 600)

package._destroy()
check_torchs(products())  # it was removed, while ours stays
assert counts() == (3, 0)
check_torchs(products())
assert counts() == (3, 0)
""",
    )


def test_errors_of_an_override_in_python(library: Path) -> None:
    check(
        library,
        """
def fails(x, y):
    seen.append("mm")
    raise KeyError("of the package")
package = library.Library("aten", "IMPL")
package.impl("mm", fails, "CPU")
door.install()
for _ in range(2):
    try:
        torch.mm(a, b)
    except KeyError as error:
        assert error.args == ("of the package",)
    else:
        sys.exit("no error")
assert counts() == (0, 2)
""",
    )


def test_an_override_in_python_that_calls_the_operator_again(library: Path) -> None:
    """As packages do that change the operands: the second call is told apart by what they changed."""
    check(
        library,
        """
def mm(keys, x, y):
    seen.append(x.dtype)
    return torch.mm(x.double(), y.double()).float() if x.dtype == torch.float32 else theirs.call_boxed(keys, x, y)
theirs = library.get_kernel("aten::mm", "CPU")
package = library.Library("aten", "IMPL")
package.impl("mm", mm, "CPU", with_keyset=True)
door.install()
torch.testing.assert_close(torch.mm(a, b), exact)
assert seen == [torch.float32, torch.float64], seen
assert counts() == (0, 2)
""",
    )


def test_an_override_in_python_after(library: Path) -> None:
    check(
        library,
        _IN_PYTHON
        + """
door.install()
register()
first, second, third = products()
assert (first == 7).all() and (second == 7).all()
torch.testing.assert_close(third, 2 + 3 * exact)
assert counts() == (1, 3)  # for addmm_ it calls the door, which it found there
package._destroy()
check_torchs(products())
assert counts() == (3, 0)
""",
    )


def test_an_override_in_cpp_before(library: Path) -> None:
    check(
        library,
        """
door.register_other()
door.install()
for _ in range(2):
    first, second, third = products()
    assert (first == 7).all() and (second == 7).all()
    torch.testing.assert_close(third, 2 + 3 * exact)
    assert counts() == (1, 2)
door.remove_other()
check_torchs(products())
assert counts() == (3, 0)
""",
    )


def test_an_override_in_cpp_after(library: Path) -> None:
    check(
        library,
        """
door.install()
door.register_other()
first, second, third = products()
assert (first == 7).all() and (second == 7).all()
assert counts() == (1, 2)
door.remove_other()
check_torchs(products())
assert counts() == (3, 0)
""",
    )
