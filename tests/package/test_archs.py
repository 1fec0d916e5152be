"""Lists of architectures that a build may be asked for: what then runs on a device, and what launchers take it for."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from build_tools import CSRC, toolkit
from build_tools.archs import gencode, own_arch, parse_archs
from build_tools.ninja import units

ARCHS = ("80", "86", "89", "90", "90a", "100", "100a", "120")
LISTS = [" ".join(archs) for size in (1, 2, 3) for archs in itertools.combinations(ARCHS, size)]
DEVICES = (80, 86, 87, 89, 90, 100, 103, 120)


def included(source: Path) -> set[Path]:
    """A source and the files of csrc/ that it includes."""
    seen, left = set(), [source]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            left += [CSRC / name for name in re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)]
    return seen


LAUNCH = CSRC / "core" / "launch.cuh"
STARTING_EARLY = sorted(source for source in CSRC.rglob("*.cu") if LAUNCH in included(source))


def compiled_for(flags: list[str]) -> list[tuple[str, str]]:
    """The pairs of -gencode: the architecture whose __CUDA_ARCH__ code is compiled with, and what it becomes."""
    pairs = [re.fullmatch(r"-gencode=arch=compute_(\w+),code=(\w+)", flag) for flag in flags]
    return [(pair[1], pair[2]) for pair in pairs if pair]


def number(arch: str) -> int:
    return int(arch.rstrip("a"))


def runs_as(flags: list[str], device: int) -> int | None:
    """Which of them the driver takes for a device, by the CUDA programming guide's rules for binary and PTX
    compatibility: machine code for its generation, no newer than it, else PTX no newer than it. None: nothing.
    """
    best: tuple[int, int] | None = None
    for virtual, code in compiled_for(flags):
        kind, arch = code.split("_")
        if arch.endswith("a"):
            serves = kind == "sm" and number(arch) == device
        elif kind == "sm":
            serves = number(arch) // 10 == device // 10 and number(arch) <= device
        else:
            serves = number(arch) <= device
        if serves:
            best = max(best or (0, 0), (kind == "sm", number(virtual)))
    return best[1] if best else None


def has_sm90_code(flags: list[str]) -> bool:
    """core/launch.cuh's: __CUDA_ARCH_LIST__ holds what code is compiled with."""
    return any(number(virtual) >= 90 for virtual, _ in compiled_for(flags))


@pytest.mark.parametrize("archs", LISTS)
def test_kernels_start_early_only_where_their_code_waits(archs: str) -> None:
    """Code for an older architecture has no griddepcontrol.wait: started early, it reads what is not written yet."""
    assert any(source.name == "pad.cu" for source in STARTING_EARLY) and len(STARTING_EARLY) > 5
    for source in STARTING_EARLY:
        flags = gencode(source, parse_archs(archs))
        for device in DEVICES:
            code = runs_as(flags, device)
            if device >= 90 and code is not None:
                assert has_sm90_code(flags) == (code >= 90), (source.name, device, flags)


def test_one_place_lets_kernels_start_early() -> None:
    asking = [
        file.relative_to(CSRC).as_posix()
        for file in sorted(CSRC.rglob("*.cu*"))
        if "ProgrammaticStreamSerialization" in file.read_text()
    ]
    assert asking == ["core/launch.cuh"]


def test_what_depends_on_a_files_architectures_is_its_own() -> None:
    """An inline function that files compile differently is one of them, picked by the linker, in all."""
    text = LAUNCH.read_text()
    for name in (
        "has_sm90_code()",
        "allow_early_start(cudaLaunchConfig_t* config)",
        "enqueue_clusters(void (*kernel)(Params)",
    ):
        (line,) = (line for line in text.splitlines() if name in line and line.endswith(("{", ",")))
        assert re.match(r"(\[\[maybe_unused\]\] )?static \w+ ", line), line


def test_launches_give_their_own_status() -> None:
    """cudaGetLastError() after a launch blames it for what an earlier call left behind."""
    after_launches = {
        file.relative_to(CSRC).as_posix()
        for file in CSRC.rglob("*.cu*")
        if re.search(r"<<<|return cudaGetLastError|[^ ] *= cudaGetLastError", file.read_text())
    }
    comments = {"core/launch.cuh"}
    assert after_launches - comments == set()


@pytest.mark.parametrize("archs", ["80", "80 90", "80 90a", "90a", "100", "80 86 90 90a"])
@pytest.mark.parametrize("name", ["tile/pad.cu", "kernels/device.cu", "kernels/sm90_skinny/instances.cu"])
def test_nvcc_lists_what_code_is_compiled_with(archs: str, name: str, tmp_path: Path) -> None:
    home, why = toolkit.find_toolkit()
    if home is None:
        pytest.skip(why)
    flags = gencode(CSRC / name, parse_archs(archs))
    source = tmp_path / "list.cu"
    source.write_text("archs: __CUDA_ARCH_LIST__ end\n")
    command = [home / "bin" / "nvcc", "-E", "-x", "cu", *flags, source]
    (line,) = re.findall(r"archs: (.*) end", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {int(arch) for arch in line.split(",")} == {10 * number(virtual) for virtual, _ in compiled_for(flags)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [s for s in sorted(CSRC.rglob("*.cu")) if own_arch(s)], ids=lambda s: s.relative_to(CSRC).as_posix()
)
def test_a_file_for_hopper_compiles_without_hopper(source: Path, tmp_path: Path) -> None:
    """It keeps its launchers then, and no device code, because ptxas would refuse that for another architecture."""
    home, why = toolkit.find_toolkit()
    if home is None:
        pytest.skip(why)
    (_, unit), *_ = units(source, tmp_path)
    flags = ["-std=c++17", f"-I{CSRC}", "-DHGEMM_NO_SM90A", "-gencode=arch=compute_80,code=sm_80"]
    command = [home / "bin" / "nvcc", *flags, "-c", unit, "-o", tmp_path / "k.o"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("archs", LISTS)
def test_the_library_runs_where_every_file_has_code(archs: str) -> None:
    """The dispatcher's rule (csrc/dispatch/devices.h) is that of the files that are compiled for each architecture."""
    native = pytest.importorskip("hgemm_ops._native")
    library = pytest.importorskip("hgemm_ops._library")
    if not library.load():
        pytest.skip(f"no native library: {library.reason()}")
    parsed = parse_archs(archs)
    portable = gencode(CSRC / "kernels" / "gemv" / "instances.cu", parsed)
    for device in DEVICES:
        usable = native.lib().hgemm_fault_of(" ".join(parsed).encode(), device, 0) == b""
        assert usable == (runs_as(portable, device) is not None), device
