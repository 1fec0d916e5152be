"""Writes build.ninja and runs ninja: nvcc compiles csrc's .cu files, and the C++ compiler its .cc files.

The file that instantiates a family becomes one object for each kernel of the family's list. An object has all element
types: no object takes long, and what the types have in common compresses well. Device code is compressed.

HGEMM_LINEINFO=1 adds line info (nvcc -lineinfo), with which ncu and compute-sanitizer show the lines of the source. It
is off by default, because it is half of a compressed library.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from build_tools import BUILD, CSRC, aten
from build_tools.archs import OWN_ARCHS, gencode, wanted_archs, wants_ladder
from build_tools.toolkit import cudart_dir

#: The sources outside of csrc/ladder that the ladder's library contains, because _C.so does not export them.
LADDER_TOO = (
    "core/chip.cc",
    "core/problem.cc",
    "dispatch/canonical.cc",
    "kernels/device.cu",
    "tile/tensor_map.cu",
    "torch/out_of_memory.cc",
)
TORCH_TARGET_VERSION = "0x020a000000000000"  # LibTorch stable ABI as of torch 2.10

#: The kernels of a family that are compiled to one object; one in other families. "family/int8" has the kernels of the
#: family's int8_list.h. nvcc takes 2 to 3 seconds to read the headers of an object, and up to 50 for one of the
#: largest kernels. More kernels in an object would save little more, and an object of several large ones would be the
#: last that a machine with many cores waits for: the longest takes about 80 seconds.
KERNELS_IN_OBJECT = {
    "batched_mma": 2,
    "simt_gemv": 2,
    "simt_skinny": 4,
    "skinny": 2,
    "sm80_mma": 2,
    "sm90_dmma": 4,
    "sm90_skinny": 3,
    "sm90_skinny/int8": 6,
    "sm90_split": 4,
    "sm90_split_skinny": 4,
    "sm90_wgmma": 4,
    "sm90_wgmma/int8": 4,
    "tiny_batch": 6,
}


def units(source: Path, build: Path, csrc: Path = CSRC) -> list[tuple[str, Path]]:
    """The objects that a .cu is compiled to: the name of each, and the file that nvcc gets for it.

    A file that uses HGEMM_CONFIG is compiled once for each kernel of the list beside it: list.h for instances.cu,
    int8_list.h for int8_instances.cu. nvcc gets files in ``build`` that include it for some kernels each. Kernels next
    to each other in a list take alike long, and go to different files.
    """
    name = source.relative_to(csrc)
    if "HGEMM_CONFIG" not in source.read_text():
        return [(f"{name}.o", source)]
    prefix = source.name.removesuffix("instances.cu")
    configs = re.findall(r"\bKernel<(.+?)>\{", source.with_name(f"{prefix}list.h").read_text())
    family = f"{source.parent.name}/{prefix}".rstrip("/_")
    count = -(-len(configs) // KERNELS_IN_OBJECT.get(family, 1))
    found = []
    for i in range(count):
        unit = build / name.with_suffix(f".{i}.cu")
        parts = (
            f'#define HGEMM_CONFIG {config}\n#include "{name}"\n#undef HGEMM_CONFIG\n' for config in configs[i::count]
        )
        content = "".join(parts)
        if not unit.is_file() or unit.read_text() != content:
            unit.parent.mkdir(parents=True, exist_ok=True)
            unit.write_text(content)
        found.append((f"{unit.relative_to(build)}.o", unit))
    return found


def expand(build: Path, csrc: Path = CSRC) -> None:
    """Decompresses the .inc.xz files, which hold large generated data, into ``build``."""
    for packed in csrc.rglob("*.inc.xz"):
        file, content = build / packed.relative_to(csrc).with_suffix(""), lzma.decompress(packed.read_bytes())
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def ninja_program() -> str:
    if importlib.util.find_spec("ninja"):
        import ninja

        return str(Path(ninja.BIN_DIR) / "ninja")
    program = shutil.which("ninja")
    if program is None:
        raise SystemExit("hgemm_ops: building the kernels needs ninja (pip install ninja)")
    return program


RULES = """\
ninja_required_version = 1.10

rule nvcc
  command = $nvcc $flags -MD -MT $out -MF $out.d -c $in -o $out 2> $out.ptxas || { cat $out.ptxas >&2; exit 1; }; $
    grep -A 4 -i warning $out.ptxas >&2; true
  depfile = $out.d
  deps = gcc
  description = nvcc $out

rule cxx
  command = $cxx $flags -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = c++ $out

rule aten
  command = $command -MD -MF $out.d
  depfile = $out.d
  deps = gcc
  description = c++ $out

rule link
  command = $cxx -shared -o $out $in $flags
  description = link $out

rule stamp
  command = touch $out
  description = touch $out

rule report
  command = tail -v -n +1 -- $in > $out
  description = report $out
"""


def ninja_path(path: Path | str) -> str:
    return re.sub(r"([$ :])", r"$\1", str(path))


def ninja_flags(flags: Iterable[object]) -> str:
    return shlex.join(map(str, flags)).replace("$", "$$")


def build_file(
    toolkit: Path | None,
    torch: Path,
    archs: list[str],
    environ: Mapping[str, str],
    build: Path = BUILD,
    ladder: bool = True,
    csrc: Path = CSRC,
) -> str:
    """The text of build.ninja for the sources under csrc/.

    ninja runs in ``build``, and makes the libraries and ptxas.txt there. ``toolkit`` is None where ``archs`` is empty.
    """
    expand(build, csrc)
    cxx = shlex.split(environ.get("CXX", "c++"))
    common = ["-fPIC", "-fvisibility=hidden"]
    missing = [arch for arch in OWN_ARCHS.values() if archs and arch not in archs]
    defines = [f"-I{csrc}", *(f"-DHGEMM_NO_SM{arch.upper()}" for arch in missing)]
    built_for = f'-DHGEMM_ARCHS="{" ".join(archs)}"'
    cc_flags = ["-O3", "-Wall", "-Wextra", *common, *defines, f"-I{build}", built_for]
    cc_flags += shlex.split(environ.get("CXXFLAGS", ""))
    torch_flags = [f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}", "-isystem", torch / "include"]
    if toolkit is None:
        cc_flags += ["-DHGEMM_NO_DEVICE_CODE", "-Wno-unused-parameter"]

    lines = [RULES, f"cxx = {ninja_flags(cxx)}"]
    override = Path(f"{aten.stem(aten.torch_version(torch))}.so")
    # Without device code this takes by far the longest. ninja starts with the edges on the longest chain, and of these
    # with the first: the stamp makes the chain as long as that of an object and its library.
    lines.append(f"build {override}: aten {ninja_path(csrc / aten.SOURCES[0])}")
    lines.append(f"  command = {ninja_flags(aten.command(cxx, csrc, torch, override))}")
    lines.append(f"build {override}.stamp: stamp {override}")
    built: dict[str, list[str]] = {"_C.so": [], "_ladder.so": []}  # library -> objects
    reports = []

    def assign(source: Path, target: str) -> bool:
        """Adds an object to the libraries that contain it. False if there is none."""
        is_rung = source.is_relative_to(csrc / "ladder")
        if not is_rung:
            built["_C.so"].append(target)
        if ladder and (is_rung or str(source.relative_to(csrc)) in LADDER_TOO):
            built["_ladder.so"].append(target)
        return ladder or not is_rung

    if toolkit is not None:
        cu_flags = ["-std=c++17", "-O2", "-Xptxas=-v", "-Xfatbin=-compress-all", f"-ccbin={cxx[-1]}"]
        cu_flags += ["-lineinfo"] if environ.get("HGEMM_LINEINFO", "0") != "0" else []
        cu_flags += [*(f"-Xcompiler={flag}" for flag in common), *defines]
        lines.append(f"nvcc = {ninja_flags([toolkit / 'bin' / 'nvcc'])}")
        for source in sorted(csrc.rglob("*.cu")):
            for target, unit in units(source, build, csrc):
                if assign(source, target):
                    reports.append(f"{target}.ptxas")
                    lines.append(f"build {target} | {target}.ptxas: nvcc {ninja_path(unit)}")
                    lines.append(f"  flags = {ninja_flags([*cu_flags, *gencode(source, archs, csrc)])}")
    for source in sorted(csrc.rglob("*.cc")):
        if source.is_relative_to(csrc / "aten"):
            continue
        target = f"{source.relative_to(csrc)}.o"
        has_ops = source.parent.name in ("torch", "ladder")
        flags = ["-std=c++20", *cc_flags, *(torch_flags if has_ops else ())]
        if assign(source, target):
            lines.append(f"build {target}: cxx {ninja_path(source)}\n  flags = {ninja_flags(flags)}")

    link_flags = [f"-L{cudart_dir(toolkit)}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"] if toolkit else []
    link_flags += [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    link_flags += ["-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-Wl,-s"]  # without names of local symbols: 1.1 MB less
    for library, parts in built.items():
        if parts:
            lines.append(f"build {library}: link {' '.join(parts)}\n  flags = {ninja_flags(link_flags)}")
    if reports:
        lines.append(f"build ptxas.txt: report {' '.join(reports)}")
    return "\n".join(lines) + "\n"


def build_libraries(toolkit: Path | None, build: Path, csrc: Path = CSRC) -> None:
    """Compiles what has changed since the last build in ``build``, which then has the libraries."""
    archs = wanted_archs()
    build.mkdir(parents=True, exist_ok=True)
    text = build_file(toolkit, aten.torch_root(), archs, os.environ, build, wants_ladder(archs), csrc)
    (build / "build.ninja").write_text(text)
    jobs = os.environ.get("MAX_JOBS", str(len(os.sched_getaffinity(0))))
    status = {"NINJA_STATUS": "[%f/%t, %e s] ", **os.environ}
    if subprocess.run([ninja_program(), "-C", build, "-j", jobs], env=status).returncode:
        raise SystemExit("hgemm_ops: compilation failed, see ninja's output above")
