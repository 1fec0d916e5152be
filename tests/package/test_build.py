"""The build: who may include whom, what is compiled and when, and what the built library must (not) hold."""

from __future__ import annotations

import itertools
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from helpers import ROOT
from test_toolkit import make_toolkit, script

from build_tools import CSRC, aten, ninja, toolkit
from build_tools.archs import OWN_ARCHS, asks_for_arch, gencode, parse_archs, wants_ladder

LIBRARY = ROOT / "hgemm_ops" / "_C.so"
PTXAS_REPORT = ROOT / "build" / "native" / "ptxas.txt"


# ---- Who may include whom

ROOMS = {
    "ptx": {"ptx"},
    "core": {"core"},
    "tile": {"tile", "ptx", "core"},
    "ladder": {"ladder", "tile", "ptx", "core"},
    "kernels": {"kernels", "tile", "ptx", "core"},
    "dispatch": {"dispatch", "core"},
    "torch": {"torch", "dispatch", "core"},
    "aten": {"aten", "dispatch", "core"},
}
#: The lists that are compiled kernel by kernel.
KERNEL_LISTS = sorted([*CSRC.glob("kernels/*/list.h"), *CSRC.glob("kernels/*/int8_list.h")])
# Whose lists of kernels a room reads besides.
LISTS = {"dispatch": ("kernels",), "ladder": ("ladder",)}
# The ladder's ops, which lie beside its kernels, as they are of one library.
LADDER_OPS = PurePosixPath("ladder/elementwise.cc")
STABLE_HEADERS = ("torch/csrc/stable/", "torch/csrc/inductor/aoti_torch/", "torch/headeronly/")
# The dispatcher's cost is measured, and its model fitted, below the public surface.
BELOW_THE_SURFACE = {
    "benchmarks/fit_model.py",
    "benchmarks/select_cost.py",
    "benchmarks/slab_times.py",
}


def is_list(header: PurePosixPath) -> bool:
    """Declarations of kernels for the dispatcher and every family. A list in a family's room is that family's own."""
    return len(header.parts) == 2 and (header.suffix == ".inc" or header.name == "variants.h")


def include_errors(file: PurePosixPath, text: str) -> list[str]:
    """What a source under csrc/ includes against the rule; ``file`` is relative to csrc/."""
    errors = []
    room = "torch" if file == LADDER_OPS else file.parts[0]
    for quote, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.MULTILINE):
        header = PurePosixPath(name)
        if quote == "<":
            allowed = room == "aten" or (room == "torch" and name.startswith(STABLE_HEADERS))
            if header.parts[0] in ("torch", "ATen", "c10") and not allowed:
                errors.append(f"{file}: <{name}>: torch headers only in csrc/aten, the stable ABI in csrc/torch")
        elif len(header.parts) < 2 or header.parts[0] not in ROOMS:
            errors.append(f'{file}: "{name}": paths start at a room')
        elif header.parts[0] not in ROOMS[room] and not (
            is_list(header) and header.parts[0] in LISTS.get(file.parts[0], ())
        ):
            errors.append(f'{file}: "{name}": {room} may include only {", ".join(sorted(ROOMS[room]))}')
        elif header.parts[0] == "kernels" and not is_list(header) and header.parent != file.parent:
            errors.append(f'{file}: "{name}": a family does not include another')
    return errors


def private_imports(text: str) -> list[str]:
    """Private modules of hgemm_ops that Python code reaches into."""
    pattern = r"^\s*(?:from|import) +hgemm_ops(?:\.| +import +)(?:.*\b)?(_\w+)"
    return re.findall(pattern, text, re.MULTILINE)


def sources() -> list[PurePosixPath]:
    suffixes = {".cc", ".cu", ".cuh", ".h", ".inc"}
    return sorted(PurePosixPath(f.relative_to(CSRC)) for f in CSRC.rglob("*") if f.suffix in suffixes)


def test_include_rule() -> None:
    assert len(sources()) > 20
    errors = [e for f in sources() for e in include_errors(f, (CSRC / f).read_text())]
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("ptx/mma.cuh", '#include "core/problem.h"'),
        ("tile/copy.cuh", '#include "kernels/a/b.cuh"'),
        ("kernels/a/b.cu", '#include "ladder/copy.cuh"'),
        ("kernels/a/b.cu", '#include "kernels/a_c/b.cuh"'),
        ("kernels/a/b.cu", '  #  include "kernels/c/b.cuh"'),
        ("kernels/a/variants.cc", '#include "kernels/c/list.h"'),
        ("kernels/b.cu", '#include "kernels/a/config.h"'),
        ("kernels/a/b.cu", '#include "b.h"'),
        ("kernels/a/b.cu", '#include "../tile/copy.cuh"'),
        ("kernels/a/b.cu", "#include <torch/csrc/stable/tensor.h>"),
        ("dispatch/select.cc", '#include "kernels/a/config.h"'),
        ("dispatch/select.cc", '#include "kernels/a/list.h"'),
        ("dispatch/select.cc", '#include "torch/torch_gemm.h"'),
        ("dispatch/models/table.cc", '#include "kernels/a/config.h"'),
        ("core/problem.cc", '#include "dispatch/plan.h"'),
        ("torch/ops.cc", '#include "kernels/variants.h"'),
        ("torch/ops.cc", '#include "aten/override.h"'),
        ("aten/override.cc", '#include "torch/torch_gemm.h"'),
        ("aten/override.cc", '#include "kernels/variants.h"'),
        ("ladder/elementwise.cc", '#include "ladder/thread_tile.cuh"'),
        ("ladder/ladder.cc", '#include "torch/tensor_access.h"'),
        ("ladder/ladder.cc", "#include <torch/csrc/stable/library.h>"),
        ("dispatch/registry.cc", '#include "ladder/variants.h"'),
        ("ladder/01_naive.cu", '#include "kernels/a/list.h"'),
        ("torch/ops.cc", "#include <ATen/ATen.h>"),
        ("torch/ops.cc", "#include <c10/core/ScalarType.h>"),
        ("torch/ops.cc", "#include <torch/extension.h>"),
    ],
)
def test_include_rule_finds(file: str, line: str) -> None:
    assert len(include_errors(PurePosixPath(file), f"// a comment\n{line}\n")) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("kernels/a/instances.cu", '#include "kernels/a/launch.cuh"'),
        ("kernels/a/variants.cc", '#include "kernels/a/list.h"'),
        ("kernels/a/variants.cc", '#include "kernels/variants.h"'),
        ("kernels/a/b.cu", '#include "ptx/mma.cuh"'),
        ("kernels/a/b.cu", '// #include "ladder/copy.cuh"'),
        ("dispatch/registry.cc", '#include "kernels/variants.h"'),
        ("dispatch/estimates.cc", '#include "dispatch/models/learned.h"'),
        ("ladder/elementwise.cc", '#include "ladder/variants.h"'),
        ("ladder/elementwise.cc", '#include "torch/tensor_access.h"'),
        ("ladder/01_naive.cu", '#include "ladder/gemm.cuh"'),
        ("ladder/01_naive.cu", '#include "tile/raster.cuh"'),
        ("torch/ops.cc", "#include <torch/csrc/stable/library.h>"),
        ("aten/override.cc", "#include <ATen/core/Tensor.h>"),
        ("aten/override.cc", '#include "dispatch/gemm_api.h"'),
        ("core/convert.cuh", "#include <cuda_fp16.h>"),
    ],
)
def test_include_rule_allows(file: str, line: str) -> None:
    assert not include_errors(PurePosixPath(file), line)


def test_the_public_surface_suffices() -> None:
    files = [f for room in ("integration", "benchmarks") for f in sorted((ROOT / room).rglob("*.py"))]
    assert files
    names = {f.relative_to(ROOT).as_posix(): private_imports(f.read_text()) for f in files}
    assert {file: found for file, found in names.items() if found and file not in BELOW_THE_SURFACE} == {}


def test_private_imports_are_found() -> None:
    assert private_imports("from hgemm_ops import _native\n") == ["_native"]
    assert private_imports("    import hgemm_ops._native\n") == ["_native"]
    assert private_imports("from hgemm_ops._tables import Table\n") == ["_tables"]
    assert private_imports("from hgemm_ops import explain, _library\n") == ["_library"]
    assert private_imports("from hgemm_ops import explain\nfrom hgemm_ops.bench import record\n") == []


# ---- What is compiled


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("80 90 90a", ["80", "90", "90a"]),
        ("90a;80", ["80", "90a"]),
        ("120,86, 90,86", ["86", "90", "120"]),
    ],
)
def test_parse_archs(text: str, archs: list[str]) -> None:
    assert parse_archs(text) == archs


def test_none_is_no_architecture_and_native_this_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_archs("none") == [] and not wants_ladder([])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for printed, archs in {
        "9.0\n9.0\n": ["90", "90a"],
        "8.6\n12.0\n7.5\n": ["86", "120"],
        "7.5\n": [],
        "No devices were found\n": [],
    }.items():
        script(tmp_path / "nvidia-smi", f"#!/bin/sh\nprintf '{printed}'\n")
        assert parse_archs("native") == archs
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert parse_archs("native") == []


@pytest.mark.parametrize("text", ["", "75", "sm_90", "90 8.0", "90b", "none 90"])
def test_parse_archs_refuses(text: str) -> None:
    with pytest.raises(SystemExit, match=r"HGEMM_CUDA_ARCHS: .* got "):
        parse_archs(text)


EACH = ["80:sm_80", "90:sm_90", "90:compute_90"]


@pytest.mark.parametrize(
    ("name", "archs", "flags"),
    [
        ("kernels/sm80_mma/instances.cu", "80 90 90a", ["80:sm_80", "80:sm_90", "80:compute_80"]),
        ("ladder/01_naive.cu", "80 86 90", ["80:sm_80", "80:sm_86", "80:sm_90", "80:compute_80"]),
        ("kernels/gemv/instances.cu", "80 90 90a", EACH),
        ("kernels/sm80_mma/instances.cu", "80", ["80:sm_80", "80:compute_80"]),
        ("kernels/sm80_mma/instances.cu", "90a", ["90a:sm_90a"]),
        ("kernels/sm90_wgmma/instances.cu", "80 90 90a", ["90a:sm_90a"]),
        ("kernels/sm90_wgmma/instances.cu", "80 90", EACH),
        ("kernels/sm90_wgmma/instances.cu", "90a", ["90a:sm_90a"]),
        ("kernels/sm90_wgmma/instances.cu", "100a", ["100a:sm_100a"]),
        ("ladder/sm90_09_wgmma_naive.cu", "80 90a", ["90a:sm_90a"]),
    ],
)
def test_gencode(name: str, archs: str, flags: list[str]) -> None:
    expected = [f"-gencode=arch=compute_{virtual},code={code}" for virtual, code in (f.split(":") for f in flags)]
    assert gencode(CSRC / name, parse_archs(archs)) == expected


def test_code_for_some_architectures_is_seen_through_includes(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    files = {
        "a.cu": '#include "part/b.cuh"\n#include <cuda_fp16.h>\n',
        "part/b.cuh": '#include "a.cu"\n#include "c.cuh"\n',  # a cycle, and a file beside it
        "part/c.cuh": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert not asks_for_arch(tmp_path / "a.cu", tmp_path)
    (tmp_path / "part" / "c.cuh").write_text("#if __CUDA_ARCH__ >= 900\n#endif\n")
    assert asks_for_arch(tmp_path / "a.cu", tmp_path)


@dataclass(frozen=True)
class Tree:
    """A small csrc/, and a toolkit that compiles .cu as C++."""

    root: Path

    @property
    def csrc(self) -> Path:
        return self.root / "a tree" / "csrc"  # a path with a space

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def toolkit(self) -> Path:
        return self.root / "cuda"

    def build_file(self, archs: str, *, ladder: bool = True, **environ: str) -> str:
        """build.ninja for a torch that there is no more of than its version."""
        torch = self.root / "torch"
        torch.mkdir(exist_ok=True)
        (torch / "version.py").write_text("__version__ = '2.99.0+cpu'\n")
        parsed = parse_archs(archs)
        toolkit = self.toolkit if parsed else None
        return ninja.build_file(toolkit, torch, parsed, environ, self.build, ladder, self.csrc)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    for name in ("CXX", "CXXFLAGS", "HGEMM_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    tree = Tree(tmp_path)
    files = {
        "core/shared.h": "int one();\n",
        "kernels/family/list.h": "    Kernel<Config<1>>{.rate = 0.5},\n    Kernel<Other<Config<2>>>{},\n",
        "kernels/family/kernel.cuh": "// templates\n",
        "kernels/family/instances.cu": '#include "kernels/family/kernel.cuh"\n'
        "template <int> struct Config {};\ntemplate <class> struct Other {};\n"
        "template <class> void launch() {}\ntemplate void launch<HGEMM_CONFIG>();\n",
        "kernels/device.cu": "",
        "dispatch/canonical.cc": 'int five() {\n#include "dispatch/data.inc"\n}\n',
        "ladder/rung.cc": 'int five();\n[[gnu::visibility("default")]] int rung() { return five(); }\n',
        "kernels/sm80_a/instances.cu": '#include "core/shared.h"\nint one() { return 1; }\n',
        "kernels/sm90_b/instances.cu": "int two() { return 2; }\n",
        "torch/ops.cc": '#include <torch/headeronly/core/ScalarType.h>\n#include "core/shared.h"\n'
        "static_assert(TORCH_TARGET_VERSION == 0x020a000000000000);\n"
        '[[gnu::visibility("default")]] int hgemm_ops() { return one(); }\n',
        "aten/override.cc": "int four() { return 4; }\n",
    }
    for name, text in files.items():
        path = tree.csrc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree.csrc / "dispatch" / "data.inc.xz").write_bytes(lzma.compress(b"return 5;\n"))
    make_toolkit(tree.toolkit)
    return tree


def test_an_architecture_with_kernels_of_its_own_is_one_line(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN_ARCHS, "sm100_", "100a")
    room = tree.csrc / "kernels" / "sm100_c"
    room.mkdir()
    (room / "instances.cu").write_text("int three() { return 3; }\n")
    archs = parse_archs("80 90a 100a")
    files = sorted(tree.csrc.rglob("kernels/*/instances.cu"))
    chosen = {f.parent.name: gencode(f, archs, tree.csrc) for f in files}
    assert chosen["sm100_c"] == ["-gencode=arch=compute_100a,code=sm_100a"]
    assert chosen["sm90_b"] == ["-gencode=arch=compute_90a,code=sm_90a"]
    assert chosen["sm80_a"] == ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_80,code=compute_80"]
    text = tree.build_file("80 90a")
    assert "-DHGEMM_NO_SM100A" in text and "-DHGEMM_NO_SM90A" not in text


def test_sources_see_only_their_rooms_flags(tree: Tree) -> None:
    edges = tree.build_file("80 90 90a").split("\nbuild ")
    flags = {edge.split(".o")[0]: edge for edge in edges}
    torch = f"{tree.root / 'torch'}/include"
    assert torch in flags["torch/ops.cc"]
    assert torch not in flags["kernels/sm80_a/instances.cu"] + flags["kernels/sm90_b/instances.cu"]
    assert "fast_math" not in "".join(edges)
    assert "HGEMM_NO_SM90A" not in "".join(edges)
    built_for = """'-DHGEMM_ARCHS="80 90 90a"'"""
    assert built_for in flags["torch/ops.cc"] and built_for not in flags["kernels/sm80_a/instances.cu"]
    assert "".join(edges).count("-Xfatbin=-compress-all") == 5 and "-lineinfo" not in "".join(edges)
    without = tree.build_file("80 90")
    assert without.count("-DHGEMM_NO_SM90A") == 8
    no_ladder = tree.build_file("80 90", ladder=False)
    assert "_ladder.so" in without and "ladder" not in no_ladder.replace(str(tree.root), "")
    assert tree.build_file("80", HGEMM_LINEINFO="1").count("-lineinfo") == 5


def test_the_override_is_compiled_first(tree: Tree) -> None:
    """Without device code it takes the longest, and would otherwise be the last, on one core."""
    (tree.build / "build.ninja").write_text(tree.build_file("none"))
    command = [ninja.ninja_program(), "-C", tree.build, "-n"]
    planned = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.search(r"^\[1/\d+\] c\+\+ _aten_torch_2_99\.so$", planned, re.MULTILINE)


def test_a_family_is_one_object_for_each_line_of_its_list(tree: Tree) -> None:
    source = tree.csrc / "kernels" / "family" / "instances.cu"
    units = ninja.units(source, tree.build, tree.csrc)
    assert [name for name, _ in units] == ["kernels/family/instances.0.cu.o", "kernels/family/instances.1.cu.o"]
    include = '#include "kernels/family/instances.cu"\n#undef HGEMM_CONFIG\n'
    assert units[1][1].read_text() == "#define HGEMM_CONFIG Other<Config<2>>\n" + include
    before = units[0][1].stat().st_mtime_ns
    assert ninja.units(source, tree.build, tree.csrc) == units
    assert units[0][1].stat().st_mtime_ns == before, "written again, so compiled again"


@pytest.mark.parametrize(
    ("kernels", "in_object", "expected"),
    [(5, 1, ["0", "1", "2", "3", "4"]), (5, 2, ["03", "14", "2"]), (5, 4, ["024", "13"]), (2, 4, ["01"])],
)
def test_some_kernels_of_a_family_share_an_object(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, kernels: int, in_object: int, expected: list[str]
) -> None:
    monkeypatch.setitem(ninja.KERNELS_IN_OBJECT, "family", in_object)
    source = tree.csrc / "kernels" / "family" / "instances.cu"
    source.with_name("list.h").write_text("".join(f"    Kernel<Config<{i}>>{{}},\n" for i in range(kernels)))
    units = ninja.units(source, tree.build, tree.csrc)
    assert ["".join(re.findall(r"HGEMM_CONFIG Config<(\d)>", unit.read_text())) for _, unit in units] == expected


def test_families_that_share_objects_exist() -> None:
    lists = {f"{file.parent.name}/{file.name.removesuffix('list.h')}".rstrip("/_") for file in KERNEL_LISTS}
    assert set(ninja.KERNELS_IN_OBJECT) <= lists


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("file", KERNEL_LISTS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_kernel_of_a_list_is_compiled(file: Path, tmp_path: Path) -> None:
    """The objects' configurations are those that the compiler finds in the list, however it is written."""
    units = ninja.units(file.with_name(file.name.replace("list.h", "instances.cu")), tmp_path)
    objects = [re.findall(r"#define HGEMM_CONFIG (.+)", unit.read_text()) for _, unit in units]
    configs = [config for line in itertools.zip_longest(*objects) for config in line if config]
    kernels = ", ".join(f"Kernel<{config}>" for config in configs)
    namespace = f"{file.parent.name}::int8" if file.name == "int8_list.h" else file.parent.name
    check = f"""
        #include <type_traits>
        #include "{file.relative_to(CSRC)}"
        namespace hgemm::{namespace} {{
        static_assert(std::is_same_v<decltype(kKernels), const std::tuple<{kernels}>>);
        }}
    """
    (tmp_path / "check.cc").write_text(textwrap.dedent(check))
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{CSRC}", tmp_path / "check.cc"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_build_is_incremental(tree: Tree, capfd: pytest.CaptureFixture[str]) -> None:
    def compiled() -> set[str]:
        ninja.build_libraries(tree.toolkit, tree.build, tree.csrc)
        assert (tree.build / "_C.so").is_file() and list((tree.build).glob("_aten_torch_*.so"))
        return set(re.findall(r"\] (?:nvcc|c\+\+) (\S+?)\.o$", capfd.readouterr().out, re.MULTILINE))

    kernels = {
        "kernels/device.cu",
        "kernels/family/instances.0.cu",
        "kernels/family/instances.1.cu",
        "kernels/sm80_a/instances.cu",
        "kernels/sm90_b/instances.cu",
    }
    host = {"dispatch/canonical.cc", "ladder/rung.cc", "torch/ops.cc"}
    assert compiled() == kernels | host
    assert (tree.build / "ptxas.txt").read_text().count("Compiling entry function") == len(kernels)
    assert (tree.build / "_ladder.so").is_file()
    assert compiled() == set()
    header = tree.csrc / "core" / "shared.h"
    header.write_text("int one();\nint two();\n")
    assert compiled() == {"kernels/sm80_a/instances.cu", "torch/ops.cc"}
    (tree.csrc / "kernels" / "family" / "kernel.cuh").write_text("// other templates\n")
    assert compiled() == {"kernels/family/instances.0.cu", "kernels/family/instances.1.cu"}
    kernel_list = tree.csrc / "kernels" / "family" / "list.h"
    kernel_list.write_text(kernel_list.read_text() + "    Kernel<Config<3>>{},\n")
    assert compiled() == {"kernels/family/instances.2.cu"}
    (tree.csrc / "dispatch" / "data.inc.xz").write_bytes(lzma.compress(b"return 6;\n"))
    assert compiled() == {"dispatch/canonical.cc"}
    (tree.csrc / "kernels" / "sm90_b" / "instances.cu").write_text("syntax error\n")
    with pytest.raises(SystemExit, match="compilation failed"):
        compiled()
    assert "sm90_b/instances.cu" in capfd.readouterr().out


def families_read(deps: str) -> dict[str, set[str]]:
    """The families of kernels whose files the objects of each family, and of each other directory, depend on.

    ``deps`` is the output of ninja -t deps.
    """
    read: dict[str, set[str]] = {}
    for rule in deps.split("\n\n"):
        target = re.match(r"((?:kernels/)?\w+)/\S+\.o: ", rule)
        if target:
            read.setdefault(target[1], set()).update(re.findall(r"^ +\S*/(kernels/\w+)/", rule, re.MULTILINE))
    return read


def test_a_file_of_a_family_is_read_for_its_own_objects_alone() -> None:
    rule = "{}.o: #deps 2, deps mtime 1 (VALID)\n    /r/csrc/kernels/{}/kernel.cuh\n    /r/csrc/kernels/c.h\n\n"
    objects = ("kernels/a/instances.0.cu", "kernels/b/instances.0.cu", "kernels/device.cu", "dispatch/models/table.cc")
    assert families_read("".join(rule.format(name, "a") for name in objects)) == {
        "kernels/a": {"kernels/a"},
        "kernels/b": {"kernels/a"},
        "kernels": {"kernels/a"},
        "dispatch": {"kernels/a"},
    }
    build = PTXAS_REPORT.parent
    if not (build / ".ninja_deps").is_file():
        pytest.skip("nothing was built here")
    deps = subprocess.run(
        [ninja.ninja_program(), "-C", build, "-t", "deps"], check=True, capture_output=True, text=True
    ).stdout
    read = families_read(deps)
    assert "dispatch" in read and any(name.startswith("kernels/") for name in read)
    assert {name: of - {name} for name, of in read.items() if of - {name}} == {}


@pytest.mark.slow
def test_nvcc_names_what_it_read_for_each_architecture(tmp_path: Path) -> None:
    home, why = toolkit.find_toolkit()
    if home is None:
        pytest.skip(why)
    for name in ("old.cuh", "new.cuh", "both.cuh"):
        (tmp_path / name).touch()
    source, target, depfile = (tmp_path / name for name in ("k.cu", "k.cu.o", "k.d"))
    source.write_text(
        '#include "both.cuh"\n#if __CUDA_ARCH__ >= 900\n#include "new.cuh"\n#elif defined(__CUDA_ARCH__)\n'
        '#include "old.cuh"\n#endif\n__global__ void k() {}\n'
    )
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in (80, 90)]
    command = [home / "bin" / "nvcc", *flags, "-MD", "-MT", target, "-MF", depfile, "-c", source, "-o", target]
    subprocess.run(command, check=True)
    assert target.is_file()
    rule = depfile.read_text()
    assert re.match(rf"{target}\s*:", rule) and {"old.cuh", "new.cuh", "both.cuh"} <= set(re.findall(r"\w+\.cuh", rule))


# ---- What the built library holds


def spilling(report: str) -> list[str]:
    """Kernels of a ptxas report that spill registers."""
    pattern = r"Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    return [
        f"{kernel}: {stores} + {loads}"
        for kernel, stores, loads in re.findall(pattern, report)
        if stores + loads != "00"
    ]


def serialized(report: str) -> list[str]:
    """ptxas notes that it gave up the asynchrony of wgmma (C7510 to C7515)."""
    return [line for line in report.splitlines() if re.search(r"C751[0-5]|wgmma.*serializ", line)]


def foreign_symbols(undefined: str) -> list[str]:
    """Symbols of torch's C++ ABI, which changes with every release, in the output of nm -DC --undefined-only."""
    return [line for line in undefined.splitlines() if re.search(r"\b[Uvw]\b.*\b(at|c10|caffe2|torch)::", line)]


def unexpected_exports(defined: str) -> list[str]:
    """Strong symbols other than the C API's in the output of nm -D --defined-only."""
    names = re.findall(r"^[0-9a-f]+ [A-TX-Z] (\S+)$", defined, re.MULTILINE)
    return [n for n in names if not n.startswith("hgemm_") and n not in ("__bss_start", "_edata", "_end")]


SAMPLE_REPORT = """\
==> kernels/a.cu.o.ptxas <==
ptxas info    : Compiling entry function 'good' for 'sm_90a'
ptxas info    : Function properties for good
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'bad' for 'sm_90a'
ptxas info    : Function properties for bad
    8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
"""


def test_checks_find_what_they_look_for() -> None:
    assert spilling(SAMPLE_REPORT) == ["bad: 4 + 0"]
    assert spilling(SAMPLE_REPORT.replace("4 bytes spill stores, 0", "0 bytes spill stores, 10")) == ["bad: 0 + 10"]
    assert not serialized(SAMPLE_REPORT)
    note = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."
    assert serialized(SAMPLE_REPORT + note) == [note]
    assert serialized(note.replace("(C7510)", "")) and serialized("ptxas info : (C7514) Potential Performance Loss")
    assert foreign_symbols("   U c10::Error::what() const\n   U aoti_torch_get_dim\n   w at::f()") == [
        "   U c10::Error::what() const",
        "   w at::f()",
    ]
    assert foreign_symbols("   U vtable for torch::autograd::Node")
    assert not foreign_symbols("   U std::ostream::flush()@GLIBCXX_3.4\n   U torch_call_dispatcher")
    assert unexpected_exports("0c T cudaMalloc\n0d T hgemm_abi\n0e W std::x\n0f V y\n10 B _end\n") == ["cudaMalloc"]


@pytest.fixture
def report() -> str:
    if not PTXAS_REPORT.is_file():
        pytest.skip("the kernels were not built here")
    return PTXAS_REPORT.read_text()


def test_report_is_complete(report: str, tmp_path: Path) -> None:
    reported = re.findall(r"^==> (.+)\.o\.ptxas <==$", report, re.MULTILINE)
    units = [name for f in sorted(CSRC.rglob("*.cu")) for name, _ in ninja.units(f, tmp_path)]
    assert [f"{name}.o" for name in reported] == units, "rebuild: pip install --no-build-isolation -e ."
    assert report.count("Function properties for") >= report.count("Compiling entry function") > 0


def test_no_kernel_spills(report: str) -> None:
    assert not spilling(report)


def test_wgmma_stays_asynchronous(report: str) -> None:
    assert not serialized(report)


@pytest.fixture(params=["_C.so", "_ladder.so"])
def binutil(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Runs a program of binutils on a library."""
    library = ROOT / "hgemm_ops" / request.param
    if not library.is_file():
        pytest.skip("no library was built")

    def run(program: str, *arguments: str) -> str:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
        return subprocess.run([program, *arguments, library], check=True, capture_output=True, text=True).stdout

    return run


def test_needs_only_the_stable_abi(binutil: Callable[..., str]) -> None:
    undefined = binutil("nm", "-DC", "--undefined-only")
    assert "aoti_torch_" in undefined
    assert not foreign_symbols(undefined)


def test_exports_only_the_c_api(binutil: Callable[..., str]) -> None:
    defined = binutil("nm", "-D", "--defined-only")
    assert "hgemm_" in defined
    assert not unexpected_exports(defined)


def test_links_the_cuda_runtime_statically(binutil: Callable[..., str]) -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", binutil("readelf", "-d"))
    assert "libtorch.so" in needed
    assert not [name for name in needed if re.match(r"libcud|libnv|libtorch_cuda|libtorch_python|libpython", name)]


# ---- Builds that lack something


def package_with(directory: Path, **libraries: Path | None) -> dict[str, str]:
    """The environment for a package that is this one, but for some libraries, by stem: another file, or none."""
    package = directory / "hgemm_ops"
    package.mkdir()
    for path in (ROOT / "hgemm_ops").iterdir():
        if path.stem not in libraries:
            (package / path.name).symlink_to(path)
    for stem, path in libraries.items():
        if path is not None:
            (package / f"{stem}.so").symlink_to(path)
    (directory / "hgemm_ops_start").symlink_to(ROOT / "hgemm_ops_start")
    (directory / "csrc").symlink_to(CSRC)
    return {**os.environ, "PYTHONPATH": str(directory)}


def python(program: str, environ: dict[str, str]) -> str:
    """What a program prints, away from the checkout."""
    program = textwrap.dedent(program)
    run = subprocess.run([sys.executable, "-c", program], cwd="/", env=environ, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


CHOICES = """
import hgemm_ops
kernels = [v.name for v in hgemm_ops.variants() if v.family != "ladder"]
print([v.id for v in hgemm_ops.variants()] == list(range(len(hgemm_ops.variants()))), kernels)
for m, n, k in ((4096, 4096, 4096), (4097, 4097, 4097), (1, 4096, 4096), (16, 4096, 4096)):
    choice = hgemm_ops.explain(M=m, N=n, K=k, arch="sm_90")
    print(choice.chosen, choice.reason, [c for c in choice.candidates if c.family != "ladder"])
"""


@pytest.mark.slow
def test_without_the_ladder_nothing_changes_but_its_steps(tmp_path: Path) -> None:
    if not LIBRARY.is_file():
        pytest.skip("no library was built")
    environ = package_with(tmp_path, _ladder=None)
    assert python(CHOICES, environ) == python(CHOICES, {**os.environ, "PYTHONPATH": str(ROOT)})
    said = python(
        """
        import torch, hgemm_ops
        assert not [v for v in hgemm_ops.variants() if v.family == "ladder"]
        a = torch.ones(2, 2)
        for call in (
            lambda: torch.ops.hgemm.sgemm_naive_f32(a, a),
            lambda: torch.ops.hgemm.vector_add(a, a),
            lambda: hgemm_ops.matmul(a, a, variant="sgemm_naive_f32"),
        ):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                print(error)
        """,
        environ,
    )
    assert said.count("is a step of the ladder, whose library was not built: install with HGEMM_LADDER=1") == 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_without_device_code_the_dispatcher_decides_as_it_does_with_it(tmp_path: Path) -> None:
    here = tmp_path / "build"
    here.mkdir()
    unoptimised = os.environ | {"CXXFLAGS": "-O0"}  # compiles sooner, and decides the same
    (here / "build.ninja").write_text(ninja.build_file(None, aten.torch_root(), [], unoptimised, here, ladder=False))
    subprocess.run([ninja.ninja_program(), "-C", here, "_C.so"], check=True, capture_output=True)
    environ = package_with(tmp_path, _C=here / "_C.so", _ladder=None)
    doctor = "import hgemm_ops.cli.doctor as d; print(d._native_library())"
    assert "without device code (HGEMM_CUDA_ARCHS=none)" in python(doctor, environ)
    if LIBRARY.is_file():
        assert python(CHOICES, environ) == python(CHOICES, {**os.environ, "PYTHONPATH": str(ROOT)})


# ---- Packaging


def wheel_names(directory: Path) -> tuple[str, list[str]]:
    (wheel,) = directory.glob("*.whl")
    return wheel.name, zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
def test_wheel_serves_every_python(tmp_path: Path) -> None:
    if not LIBRARY.is_file() or toolkit.find_toolkit()[0] is None:
        pytest.skip("no library was built")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    name, files = wheel_names(tmp_path)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert re.fullmatch(rf"hgemm_ops-[\d.]+-cp310-abi3-{platform}\.whl", name)
    libraries = {"hgemm_ops/_C.so", "hgemm_ops/_ladder.so"}
    assert libraries | {"hgemm_ops/__init__.py", "hgemm_ops/py.typed"} <= set(files)
    assert [f for f in files if re.fullmatch(r"hgemm_ops/_aten_torch_\w+\.so", f)]
    assert {f"hgemm_ops/_csrc/{source}" for source in aten.SOURCES} <= set(files)
    data = ("_csrc/ladder/variants.inc", "bench/zoo.csv", "bench/peers/cutlass_gemm.cu", "tables/nvidia_h200.json")
    assert {f"hgemm_ops/{name}" for name in data} <= set(files)
    assert {"hgemm_ops_start/__init__.py", "hgemm_ops_start/run.py"} <= set(files)
    assert not [f for f in files if not f.startswith(("hgemm_ops/", "hgemm_ops_start/", "hgemm_ops-"))]


def test_without_nvcc_the_package_is_pure_python(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("hgemm_ops", "build_tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "hgemm_ops" / "_C.so").write_text("of an earlier build\n")
    program = textwrap.dedent(
        """
        import functools, pathlib, sys, setup
        from build_tools import toolkit
        toolkit.DEFAULT_HOME = pathlib.Path("nothing")
        toolkit.find_toolkit = functools.partial(toolkit.find_toolkit, {}, [])
        sys.argv[1:] = ["--quiet", "bdist_wheel", "--dist-dir", "dist"]
        setup.main()
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stderr.count("hgemm_ops: installing without CUDA kernels, so torch runs every op (no nvcc in ") == 1
    name, files = wheel_names(tmp_path / "dist")
    assert re.fullmatch(r"hgemm_ops-[\d.]+-py3-none-any\.whl", name)
    assert "hgemm_ops/__init__.py" in files and "hgemm_ops/_C.so" not in files
