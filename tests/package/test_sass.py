"""benchmarks/sass.py: which kernels count as the same."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT

from build_tools import toolkit

LISTING = """
Fatbin elf code:
================
arch = sm_90a
compressed

\tcode for sm_90a
\t\tFunction : _Z1av
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */
\t\t..........
\t\tFunction : _Z1bv
        /*0000*/                   EXIT ;                   /* 0x1 */
"""
USAGE = "arch = sm_80\n\nResource usage:\n Common:\n  GLOBAL:0\n Function _Z1av:\n  REG:168 STACK:0\n"


@pytest.fixture(scope="module")
def sass() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sass", ROOT / "benchmarks" / "sass.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sass"] = module
    spec.loader.exec_module(module)
    return module


def cubin(**contents: bytes) -> bytes:
    """A file of the layout that ptxas writes, with these sections ("__" stands for the dot before a kernel's name)."""
    names = {".shstrtab": b""} | {f".{name.replace('__', '.')}": content for name, content in contents.items()}
    names[".shstrtab"] = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    body, headers, at = b"", bytes(64), 64
    for name, content in names.items():
        place = names[".shstrtab"].index(b"\0" + name.encode() + b"\0") + 1
        headers += struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, at, len(content), 0, 0, 1, 0)
        body, at = body + content, at + len(content)
    elf = bytearray(b"\x7fELF\x02\x01\x01" + bytes(57) + body + headers)
    struct.pack_into("<Q", elf, 0x28, at)
    struct.pack_into("<HHH", elf, 0x3A, 64, len(names) + 1, 1)
    return bytes(elf)


def test_listings_are_read(sass: ModuleType) -> None:
    found = list(sass.functions(LISTING))
    assert [(arch, name) for arch, name, _ in found] == [("sm_90a", "_Z1av"), ("sm_90a", "_Z1bv")]
    assert sum("LDC" in line for line in found[0][2]) == 1
    assert [(arch, name, lines[0].split()) for arch, name, lines in sass.functions(USAGE)] == [
        ("sm_80", "_Z1av", ["REG:168", "STACK:0"])
    ]


def test_code_and_constants_count(sass: ModuleType) -> None:
    digest = sass.digests(cubin(text__a=b"code", nv__info=b"ignored"))["a"]
    assert sass.digests(cubin(nv__info=b"other", text__renamed=b"code")) == {"renamed": digest}
    assert sass.digests(cubin(text__a=b"Code"))["a"] != digest
    assert sass.digests(cubin(text__a=b"code", nv__constant2=b"", **{"nv.constant2__a": b"1.5"}))["a"] != digest


def test_names_do_not_count_but_numbers_do(sass: ModuleType) -> None:
    def kernels(*of: tuple[str, str, bytes], resources: str = "REG:168") -> dict[str, Any]:
        return {name: [(sass.Kernel(arch, resources, code), Path("k.cu.o"))] for name, arch, code in of}

    def report(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
        found: list[str] = sass.differences(before, after, lambda file, arch, name: ["MOV R1, R2", "EXIT"])
        return found

    before = kernels(("_Z3oldv", "sm_80", b"code"))
    assert not report(before, kernels(("_Z3newv", "sm_80", b"code")))
    twice = kernels(("_Z3oldv", "sm_80", b"code"), ("_Z3newv", "sm_80", b"code"))
    assert [line.split(" sm_80 ")[0] for line in report(before, twice)] == ["one more copy after:"] * 2
    assert [line.split(" sm_80 ")[0] for line in report(twice, before)] == ["one more copy before:"] * 2
    assert [line.split(" ")[:2] for line in report(before, kernels(("_Z3oldv", "sm_90", b"code")))] == [
        ["only", "before:"],
        ["only", "after:"],
    ]
    differs = report(before, kernels(("_Z3oldv", "sm_80", b"code"), resources="REG:160"))
    assert differs[0].startswith("differs: sm_80 ") and [line.strip() for line in differs[2:]] == [
        "-REG:168",
        "+REG:160",
    ]


def test_on_objects(sass: ModuleType, tmp_path: Path) -> None:
    home, why = toolkit.find_toolkit()
    if home is None:
        pytest.skip(why)
    if not all(shutil.which(name) for name in ("cuobjdump", "nvdisasm")):
        pytest.skip("needs cuobjdump and nvdisasm")

    def compiled(directory: str, source: str) -> Path:
        folder = tmp_path / directory
        folder.mkdir()
        (folder / "k.cu").write_text(source)
        command = [home / "bin" / "nvcc", "-arch=sm_80", "-lineinfo", "-c", folder / "k.cu", "-o", folder / "k.cu.o"]
        subprocess.run(command, check=True, capture_output=True)
        return folder

    kernel = "template <int N> __global__ void {name}(float* x) {{ x[threadIdx.x] *= {factor}; }}\n"
    kernel += "template __global__ void {name}<1>(float*);\n"
    before = compiled("before", kernel.format(name="scale", factor="3.0f"))
    renamed = compiled("renamed", "\n" + kernel.format(name="multiply", factor="3.0f"))
    changed = compiled("changed", kernel.format(name="scale", factor="5.0f"))
    assert sass.main([str(before), str(renamed / "k.cu.o")]) == 0
    assert sass.main([str(before), str(changed)]) == 1
