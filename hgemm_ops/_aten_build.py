"""How ``csrc/aten`` is compiled: for build_tools, and for a torch that no library was built for. Imports no torch."""

import re
from collections.abc import Sequence
from pathlib import Path

#: What the compilation reads, below the include root.
SOURCES = ("aten/override.cc", "core/problem.h", "dispatch/canonical.h", "dispatch/gemm_api.h")


def stem(torch_version: str) -> str:
    """The library's name: "_aten_torch_2_13" for all releases of 2.13, one of its own for a development version."""
    release = re.match(r"(\d+)\.(\d+)\.\d+(\+|$)", torch_version)
    return "_aten_torch_" + ("_".join(release.groups()[:2]) if release else re.sub(r"\W", "_", torch_version))


def command(cxx: Sequence[str], csrc: Path, torch: Path, output: Path) -> list[str]:
    """The compiler's command line. ``csrc`` is the include root, ``torch`` torch's directory.

    Symbols of at::cuda are found among libtorch.so's dependencies at run time, so a torch without CUDA will do here.
    """
    headers = torch / "include"
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"]
    includes = [f"-I{csrc}", "-isystem", str(headers), "-isystem", str(headers / "torch" / "csrc" / "api" / "include")]
    libraries = [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    return [*cxx, *flags, *includes, str(csrc / SOURCES[0]), "-o", str(output), *libraries]
