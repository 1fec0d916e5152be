"""Writes a kernel for the ``kernels`` library: ``python -m build_tools.hub WHEEL DIRECTORY``, or ``make hub``.

The library loads ``build/<variant>`` of the directory, without installing or compiling anything. The name of a variant
says what it was built for: this one is for LibTorch's stable ABI and a CUDA release. ``metadata.json`` describes it.
Its ``id`` is the name that the module gets, and the namespace of its ops. The id ends with a digest of the files, so
one process can load several versions.

The kernel is the package of the wheel, which the library imports under the name of the id, with the modules of
``build_tools/kernel``. These modules import each other relatively, and ``ops/schema.py`` takes the namespace from the
package's name. The kernel has neither the command line nor what only the course or a benchmark needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from build_tools import ROOT, archs, ninja, toolkit

PACKAGE = "hgemm_ops"
NAME = "hgemm-ops"  # lower case and no underscore: the library refuses other names
VERSION = 1  # of the functions and layers; a kernel with incompatible ones gets the next number
LICENSE = "BSD-3-Clause"
KERNEL = ROOT / "build_tools" / "kernel"

#: The files and directories of the package that the kernel does not have.
LEFT_OUT = ("__main__.py", "__pycache__", "_csrc", "_ladder.so", "_startup.py", "bench", "cli", "ladder.py")


def variant(cuda: tuple[int, int]) -> str:
    """The name of a build for a CUDA release. It runs on the releases of torch from the stable ABI's on."""
    abi = int(ninja.TORCH_TARGET_VERSION, 16)
    return f"torch-stable-abi{abi >> 56}{abi >> 48 & 255}-cu{cuda[0]}{cuda[1]}-{platform.machine()}-linux"


def capabilities(built_for: list[str]) -> list[str]:
    """The architectures of a build as compute capabilities: "9.0a" for "90a", "9.0+PTX" where there is PTX."""
    portable = [arch for arch in built_for if not arch.endswith("a")]
    names = {arch: re.sub(r"(\d)(a?)$", r".\1\2", arch) for arch in built_for}
    return [names[arch] + ("+PTX" if arch in portable[-1:] else "") for arch in built_for]


def digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]


def contents(package: Path) -> dict[str, bytes]:
    """The files of the kernel by their names in it."""
    found = {
        str(path.relative_to(package)): path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and not {*path.relative_to(package).parts} & {*LEFT_OUT}
    }
    version = re.search(r'^__version__ = "(.+)"$', found["__init__.py"].decode(), re.MULTILINE)
    assert version is not None
    init = (KERNEL / "__init__.py").read_text().replace("{version}", version[1])
    layers, licence = KERNEL / "layers.py", ROOT / "LICENSE"
    return found | {"__init__.py": init.encode(), **{file.name: file.read_bytes() for file in (layers, licence)}}


def write(package: Path, directory: Path, cuda: tuple[int, int], built_for: list[str]) -> Path:
    """Writes the kernel of the package in a directory, and returns that of the variant.

    SystemExit if the package has no native library.
    """
    if not (package / "_C.so").is_file():
        raise SystemExit(f"hgemm_ops: {package / '_C.so'} was not built, so there is no kernel to write")
    files = contents(package)
    id_ = f"_{NAME.replace('-', '_')}_cuda_{digest(files)}"
    metadata = {
        "id": id_,
        "name": NAME,
        "version": VERSION,
        "license": LICENSE,
        "python-depends": [],
        "backend": {"type": "cuda", "archs": capabilities(built_for)},
    }
    target = directory / "build" / variant(cuda)
    if target.exists():
        shutil.rmtree(target)
    for name, content in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m build_tools.hub", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, help="the wheel that `make wheel` wrote")
    parser.add_argument("directory", type=Path, help="the kernel's repository; builds for other CUDA releases stay")
    arguments = parser.parse_args()
    home, reason = toolkit.find_toolkit()
    cuda = toolkit.nvcc_release(home) if home else None
    if cuda is None:
        sys.exit(f"hgemm_ops: the variant's name needs the CUDA release of nvcc: {reason}")
    with tempfile.TemporaryDirectory() as unpacked:
        zipfile.ZipFile(arguments.wheel).extractall(unpacked)
        print(write(Path(unpacked, PACKAGE), arguments.directory, cuda, archs.wanted_archs()))


if __name__ == "__main__":
    main()
