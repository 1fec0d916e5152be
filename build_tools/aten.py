"""Compiles ``csrc/aten`` for releases of torch, whose headers it needs.

The command comes from ``hgemm_ops/_aten_build.py``. The package owns that file, because an installed package also
compiles ``csrc/aten``, for a torch that no library was built for. The file is loaded by its path, because importing the
package would import torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from build_tools import CSRC, ROOT


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_aten_build = _load(ROOT / "hgemm_ops" / "_aten_build.py")
SOURCES, stem, command = _aten_build.SOURCES, _aten_build.stem, _aten_build.command


def torch_root() -> Path:
    """The directory of torch, which is found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("hgemm_ops: building the kernels needs torch >= 2.10")
    return Path(spec.origin).parent


def torch_version(root: Path) -> str:
    version = re.search(r"^__version__ = '(.+)'", (root / "version.py").read_text(), re.MULTILINE)
    if version is None:
        raise SystemExit(f"hgemm_ops: {root / 'version.py'} names no version")
    return version[1]


def build_for_other_torch(version: str, build: Path) -> None:
    """Compiles csrc/aten for another version of torch.

    That torch is installed into a temporary directory, without its dependencies.
    """
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        output = build / f"{stem(version)}.so"
        cxx = shlex.split(os.environ.get("CXX", "c++"))
        subprocess.run(command(cxx, CSRC, Path(directory) / "torch", output), check=True)
