"""The compiler command for ``csrc/aten``.

Two callers use it: build_tools at installation, and the package itself, for a torch that no library was built for. This
module does not import torch.
"""

import re
from collections.abc import Sequence
from pathlib import Path

#: The files that the compilation reads, relative to the include root.
SOURCES = ("aten/override.cc", "aten/earlier.h", "core/problem.h", "dispatch/canonical.h", "dispatch/gemm_api.h")


def stem(torch_version: str) -> str:
    """Returns the file name, without its extension, of the library for a version of torch.

    All releases of torch 2.13 share "_aten_torch_2_13". A development version has a name of its own.
    """
    release = re.match(r"(\d+)\.(\d+)\.\d+(\+|$)", torch_version)
    return "_aten_torch_" + ("_".join(release.groups()[:2]) if release else re.sub(r"\W", "_", torch_version))


def command(cxx: Sequence[str], csrc: Path, torch: Path, output: Path) -> list[str]:
    """Returns the compiler's command line. ``csrc`` is the include root, ``torch`` is torch's directory.

    The library finds the symbols of at::cuda at run time, among the dependencies of libtorch.so. A torch without CUDA
    is therefore enough to compile it.
    """
    headers = torch / "include"
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"]
    includes = [f"-I{csrc}", "-isystem", str(headers), "-isystem", str(headers / "torch" / "csrc" / "api" / "include")]
    libraries = [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    return [*cxx, *flags, *includes, str(csrc / SOURCES[0]), "-o", str(output), *libraries]
