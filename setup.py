"""Builds the native libraries with ninja. ``build_tools`` has the details.

- hgemm_ops/_C.so has the kernels, the dispatcher and the ops.
- hgemm_ops/_ladder.so is csrc/ladder.
- hgemm_ops/_aten_torch_<version>.so is csrc/aten, for the torch that is installed.

None of them is a Python module. torch.ops.load_library and ctypes open them, hence the abi3 tag.

torch.utils.cpp_extension refuses to compile CUDA beside a CPU-only torch. For _C.so, this build needs only the headers
and link names of LibTorch's stable ABI, so that it works with every torch from 2.10 on, CPU or CUDA. csrc/aten needs
more than the stable ABI. For a torch other than the build's, hgemm_ops/_override.py compiles it when it is first
needed, from sources in the package.

Without a CUDA toolkit (build_tools/toolkit.py) the package installs as pure Python, and torch runs every op.

Environment:

- CUDA_HOME, CUDA_PATH, CXX, CXXFLAGS, MAX_JOBS.
- HGEMM_CUDA_ARCHS: the architectures (build_tools/archs.py).
- HGEMM_LADDER=0: leaves out the ladder.
- HGEMM_OPS_TORCHES: more releases of torch to compile csrc/aten for, such as "2.10.0 2.11.0".
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))  # an isolated build lacks this directory

from build_tools import BUILD, CSRC, aten, toolkit
from build_tools.archs import wanted_archs, wants_ladder
from build_tools.ninja import build_libraries

#: The list of the ladder's steps. A package without the ladder's library reads there which steps there would be.
LADDER_LIST = "ladder/variants.inc"


class Library(Extension):
    """A native library.

    home: the CUDA toolkit, if there is device code.
    torch: for the override of a torch other than the installed one, the version of that torch.
    """

    def __init__(self, name: str, home: Path | None, torch: str | None = None) -> None:
        super().__init__(name, sources=[], py_limited_api=True)
        self.home = home
        self.torch = torch


class NinjaBuildExt(build_ext):
    """Builds in BUILD, which outlives pip's temporary directories, and copies the libraries from there."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Library) -> None:
        if ext.torch:
            aten.build_for_other_torch(ext.torch, BUILD)
        else:
            build_libraries(ext.home, BUILD)  # all libraries; for the next ones ninja finds nothing to do
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / target.name, target)


class BuildPyWithSources(build_py):
    """Adds the sources that _override.py compiles, and the list of the ladder's steps."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the checkout has these files
        for name in (*aten.SOURCES, LADDER_LIST):
            target = Path(self.build_lib) / "hgemm_ops" / "_csrc" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CSRC / name, target)


class BuildPyWithoutKernels(build_py):
    """Says why there are no kernels.

    It says so here because pip runs setup.py several times, but the build once.
    """

    reason: ClassVar[str]

    def run(self) -> None:
        print(f"hgemm_ops: installing without CUDA kernels, so torch runs every op ({self.reason})", file=sys.stderr)
        super().run()


def main() -> None:
    archs = wanted_archs()
    home, reason = toolkit.find_toolkit() if archs else (None, "")
    BuildPyWithoutKernels.reason = reason
    libraries = []
    if home or not archs:
        installed = aten.stem(aten.torch_version(aten.torch_root()))
        names = ["_C", *(["_ladder"] if wants_ladder(archs) else []), installed]
        libraries = [Library(f"hgemm_ops.{name}", home) for name in names]
        others = {aten.stem(version): version for version in os.environ.get("HGEMM_OPS_TORCHES", "").split()}
        libraries += [Library(f"hgemm_ops.{stem}", home, v) for stem, v in others.items() if stem != installed]
    with_libraries = {"build_ext": NinjaBuildExt, "build_py": BuildPyWithSources}
    setup(
        ext_modules=libraries,
        cmdclass=with_libraries if libraries else {"build_py": BuildPyWithoutKernels},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )


if __name__ == "__main__":
    main()
