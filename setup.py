"""Builds three libraries through ninja: hgemm_ops/_C.so, of csrc/**/*.cu by nvcc and csrc/**/*.cc by the C++ compiler;
hgemm_ops/_ladder.so, of csrc/ladder; and hgemm_ops/_aten_torch_<version>.so, of csrc/aten by the C++ compiler, for the
torch that is installed.

torch.utils.cpp_extension refuses to compile CUDA beside a CPU-only torch. This build takes only headers and link names
of LibTorch's stable ABI for _C.so, so that it runs on every torch from 2.10 on, CPU or CUDA. csrc/aten needs more than
the stable ABI: for a torch other than the build's, hgemm_ops/_override.py compiles it when it is first wanted, from the
sources that the package carries. None is a Python module: torch.ops.load_library and ctypes open them, hence the
abi3 tag.

nvcc is looked for in CUDA_HOME, CUDA_PATH, PATH, the nvidia-cuda-nvcc wheels (requirements/nvcc.txt), /usr/local/cuda.
Without one the package installs as pure Python and torch serves every op.

Environment: CUDA_HOME, CUDA_PATH, CXX, CXXFLAGS, MAX_JOBS; HGEMM_OPS_TORCHES, more releases of torch to compile
csrc/aten for, as "2.10.0 2.11.0"; HGEMM_LADDER=0, which leaves out the ladder; and HGEMM_CUDA_ARCHS, a list, "native"
for what this machine's GPUs run, or "none"; "80 90 90a" unless set:
  - a .cu whose name, or a room's that it lies in, starts with sm90_ is compiled for 90a (OWN_ARCHS);
  - every other .cu for each architecture without a letter, and to PTX for the highest of them; one that does not ask
    for __CUDA_ARCH__, nor does what it includes, is compiled once, to PTX for the lowest, which serves all;
  - where that leaves a .cu without an architecture, it is compiled for what the list does hold. A list without 90a also
    defines HGEMM_NO_SM90A in every source: those then keep their launchers, without device code, and report their
    kernels as not built.
  - "none", and "native" without a GPU, compile no .cu and need no nvcc: _C.so then holds the dispatcher and the ops,
    which decide and explain as a full build would, and torch serves every product (core/problem.h).

The file that instantiates a family becomes one object for each line of the family's list, with both element types: no
object takes long, and what the types have in common compresses well. Device code is compressed as far as nvcc can,
which from nvcc 12.8 on needs a driver of CUDA 12.4 (550.54) or newer, and compile_cu.py leaves out the PTX that line
info brings along.

Outputs stay in build/native: objects, build.ninja, and ptxas.txt, the ptxas report of the linked objects.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
sys.path.insert(0, str(ROOT / "hgemm_ops"))  # not the package: it imports torch
import _aten_build  # noqa: E402

BUILD = ROOT / "build" / "native"
COMPILE = ROOT / "compile_cu.py"

DEFAULT_HOME = Path("/usr/local/cuda")
DEFAULT_ARCHS = "80 90 90a"
#: Names of files and rooms with kernels for one architecture alone start so: a line for each such architecture.
OWN_ARCHS = {"sm90_": "90a"}
MIN_ARCH = 80
MIN_NVCC = (12, 1)  # the first with st.async: benchmarks/cuda12.py
COMPRESSING_NVCC = (12, 8)  # the first with --compress-mode
#: What the ladder's library holds of the other rooms; _C.so exports none of it.
LADDER_TOO = ("dispatch/canonical.cc", "kernels/device.cu", "tile/tensor_map.cu")
TORCH_TARGET_VERSION = "0x020a000000000000"  # LibTorch stable ABI as of torch 2.10


def nvcc_home(nvcc: str) -> Path | None:
    """The toolkit of an nvcc on PATH, which may be a link, a shell script or a compiler cache."""
    dry_run = subprocess.run([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else None


def toolkit_homes(environ: Mapping[str, str], site_dirs: Iterable[str]) -> Iterator[Path]:
    """Where a CUDA toolkit may be, best first; the paths need not exist."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name])
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    home = nvcc_home(nvcc) if nvcc else None
    if home:
        yield home
    for site in site_dirs:
        yield from sorted(Path(site).glob("nvidia/cu[0-9]*"), reverse=True)
    yield DEFAULT_HOME


def cudart_dir(home: Path) -> Path | None:
    """The directory of libcudart_static.a: distributions, cross toolkits and the wheels each have their own."""
    candidates = [home / "lib64", *sorted(home.glob("targets/*-linux/lib")), home / "lib"]
    return next((d for d in candidates if (d / "libcudart_static.a").is_file()), None)


def nvcc_release(home: Path) -> tuple[int, int] | None:
    version = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", version)
    return (int(release[1]), int(release[2])) if release else None


def defect(home: Path) -> str | None:
    """Why a toolkit that has an nvcc cannot build this library, None if it can."""
    if cudart_dir(home) is None:
        return "no libcudart_static.a"
    release = nvcc_release(home)
    if release is None:
        return "nvcc --version names no release"
    if release < MIN_NVCC:
        return f"nvcc {release[0]}.{release[1]} is older than {MIN_NVCC[0]}.{MIN_NVCC[1]}"
    return None


def find_toolkit(
    environ: Mapping[str, str] = os.environ, site_dirs: Sequence[str] = sys.path
) -> tuple[Path | None, str]:
    """The first usable toolkit and, where there is none, the reason."""
    rejected = []
    for home in toolkit_homes(environ, site_dirs):
        if not (home / "bin" / "nvcc").is_file():
            continue
        reason = defect(home)
        if reason is None:
            return home, ""
        rejected.append(f"{home}: {reason}")
    return None, "; ".join(rejected) or f"no nvcc in CUDA_HOME, PATH, the nvidia-cuda-nvcc wheels or {DEFAULT_HOME}"


def native_archs() -> str:
    """The architectures of this machine's GPUs, by nvidia-smi; "none" without a GPU that kernels are for."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return "none"
    archs = {int(major + minor) for major, minor in re.findall(r"^(\d+)\.(\d)$", found, re.MULTILINE)}
    own = [arch for arch in OWN_ARCHS.values() if int(arch.rstrip("a")) in archs]
    return " ".join([*(str(a) for a in archs if a >= MIN_ARCH), *own]) or "none"


def parse_archs(text: str) -> list[str]:
    """The architectures of a list, lowest first; none for "none"."""
    archs = (native_archs() if text.strip() == "native" else text).replace(",", " ").replace(";", " ").split()
    if archs == ["none"]:
        return []
    bad = [a for a in archs if not re.fullmatch(r"\d{2,3}a?", a) or int(a.rstrip("a")) < MIN_ARCH]
    if bad or not archs:
        raise SystemExit(
            f"HGEMM_CUDA_ARCHS: expected native, none or a list like '{DEFAULT_ARCHS}' from {MIN_ARCH} on, got '{text}'"
        )
    return sorted(dict.fromkeys(archs), key=lambda a: (int(a.rstrip("a")), a))


def wanted_archs() -> list[str]:
    return parse_archs(os.environ.get("HGEMM_CUDA_ARCHS", DEFAULT_ARCHS))


def wants_ladder(archs: list[str]) -> bool:
    return bool(archs) and os.environ.get("HGEMM_LADDER", "1") != "0"


def asks_for_arch(source: Path) -> bool:
    """Whether a source, or one of csrc/ that it includes, has code for some architectures only.

    CUDA's headers have as well: without asking, a source converts bfloat16 as the lowest architecture does, on sm_90 by
    as many instructions.
    """
    seen, left = set(), [source]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        text = file.read_text()
        if "__CUDA_ARCH__" in text:
            return True
        included = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
        left += [path for name in included for path in (CSRC / name, file.parent / name) if path.is_file()]
    return False


def own_arch(source: Path) -> str | None:
    """The one architecture that a source under csrc/ has kernels for, by its name or a directory's; None for all."""
    parts = source.relative_to(CSRC).parts
    return next((arch for prefix, arch in OWN_ARCHS.items() if any(part.startswith(prefix) for part in parts)), None)


def gencode(source: Path, archs: list[str]) -> list[str]:
    """nvcc's -gencode flags for one .cu; the rule is in this file's docstring."""
    portable = [a for a in archs if not a.endswith("a")]
    own = own_arch(source)
    chosen = [own] if own in archs else portable or archs
    once = chosen == portable and not asks_for_arch(source)
    virtual = {a: portable[0] if once else a for a in chosen}
    flags = [f"-gencode=arch=compute_{virtual[a]},code=sm_{a}" for a in chosen]
    if chosen == portable:
        flags.append(f"-gencode=arch=compute_{virtual[portable[-1]]},code=compute_{virtual[portable[-1]]}")
    return flags


def units(source: Path, build: Path) -> list[tuple[str, Path]]:
    """What a .cu is compiled as: names of objects, and the file that nvcc gets for each.

    A file that asks for HGEMM_LINE is compiled once for each line of the list of kernels that it includes, through a
    file of two lines in ``build``.
    """
    name, text = source.relative_to(CSRC), source.read_text()
    if "HGEMM_LINE" not in text:
        return [(f"{name}.o", source)]
    (kernels,) = re.findall(r'^#include "(.+\.inc)"', text, re.MULTILINE)
    lines = re.findall(r"^[A-Z][A-Z0-9_]*\(.*\)$", (CSRC / kernels).read_text(), re.MULTILINE)
    found = []
    for i, line in enumerate(lines):
        unit = build / name.with_suffix(f".{i}.cu")
        content = f'#define HGEMM_LINE {line}\n#include "{name}"\n'
        if not unit.is_file() or unit.read_text() != content:
            unit.parent.mkdir(parents=True, exist_ok=True)
            unit.write_text(content)
        found.append((f"{unit.relative_to(build)}.o", unit))
    return found


def expand(build: Path) -> None:
    """Writes what is kept as .inc.xz, large data that nobody reads, to ``build``."""
    for packed in CSRC.rglob("*.inc.xz"):
        file, content = build / packed.relative_to(CSRC).with_suffix(""), lzma.decompress(packed.read_bytes())
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def torch_root() -> Path:
    """torch's directory, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("hgemm_ops: building the kernels needs torch >= 2.10")
    return Path(spec.origin).parent


def torch_version(root: Path) -> str:
    return re.search(r"^__version__ = '(.+)'", (root / "version.py").read_text(), re.MULTILINE)[1]


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
  command = $compile $out.d $nvcc $flags -c $in -o $out 2> $out.ptxas || { cat $out.ptxas >&2; exit 1; }; $
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
) -> str:
    """build.ninja for the sources under csrc/: makes the libraries and ptxas.txt in ``build``, where it is to run.

    ``toolkit``: None where ``archs`` is empty.
    """
    expand(build)
    cxx = shlex.split(environ.get("CXX", "c++"))
    common = ["-fPIC", "-fvisibility=hidden"]
    missing = [arch for arch in OWN_ARCHS.values() if archs and arch not in archs]
    defines = [f"-I{CSRC}", *(f"-DHGEMM_NO_SM{arch.upper()}" for arch in missing)]
    built_for = f'-DHGEMM_ARCHS="{" ".join(archs)}"'
    cc_flags = ["-O2", "-Wall", "-Wextra", *common, *defines, f"-I{build}", built_for]
    cc_flags += shlex.split(environ.get("CXXFLAGS", ""))
    torch_flags = [f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}", "-isystem", torch / "include"]
    if toolkit is None:
        cc_flags += ["-DHGEMM_NO_DEVICE_CODE", "-Wno-unused-parameter"]

    lines = [RULES, f"cxx = {ninja_flags(cxx)}"]
    aten = Path(f"{_aten_build.stem(torch_version(torch))}.so")
    # First: by far the longest where there is no device code.
    lines.append(f"build {aten}: aten {ninja_path(CSRC / _aten_build.SOURCES[0])}")
    lines.append(f"  command = {ninja_flags(_aten_build.command(cxx, CSRC, torch, aten))}")
    built: dict[str, list[str]] = {"_C.so": [], "_ladder.so": []}  # library -> objects
    reports = []

    def assign(source: Path, target: str) -> bool:
        """Adds an object to the libraries that want it; False where none does."""
        is_rung = source.is_relative_to(CSRC / "ladder")
        if not is_rung:
            built["_C.so"].append(target)
        if ladder and (is_rung or str(source.relative_to(CSRC)) in LADDER_TOO):
            built["_ladder.so"].append(target)
        return ladder or not is_rung

    if toolkit is not None:
        cu_flags = ["-std=c++17", "-O2", "-lineinfo", "-Xptxas=-v", f"-ccbin={cxx[-1]}"]
        compresses = (nvcc_release(toolkit) or MIN_NVCC) >= COMPRESSING_NVCC
        cu_flags += ["--compress-mode=size" if compresses else "-Xfatbin=-compress-all"]
        cu_flags += [*(f"-Xcompiler={flag}" for flag in common), *defines]
        # Any Python will do, and another environment's is no reason to compile again.
        lines.append(f"compile = {ninja_flags(['python3' if shutil.which('python3') else sys.executable, COMPILE])}")
        lines.append(f"nvcc = {ninja_flags([toolkit / 'bin' / 'nvcc'])}")
        for source in sorted(CSRC.rglob("*.cu")):
            for target, unit in units(source, build):
                if assign(source, target):
                    reports.append(f"{target}.ptxas")
                    lines.append(f"build {target} | {target}.ptxas: nvcc {ninja_path(unit)} | {ninja_path(COMPILE)}")
                    lines.append(f"  flags = {ninja_flags([*cu_flags, *gencode(source, archs)])}")
    for source in sorted(CSRC.rglob("*.cc")):
        if source.is_relative_to(CSRC / "aten"):
            continue
        target = f"{source.relative_to(CSRC)}.o"
        has_ops = source.parent.name in ("torch", "ladder")
        flags = ["-std=c++20", *cc_flags, *torch_flags] if has_ops else ["-std=c++17", *cc_flags]
        if assign(source, target):
            lines.append(f"build {target}: cxx {ninja_path(source)}\n  flags = {ninja_flags(flags)}")

    link_flags = [f"-L{cudart_dir(toolkit)}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"] if toolkit else []
    link_flags += [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    link_flags += ["-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-Wl,-s"]  # no names of local symbols: 1.1 MB
    for library, parts in built.items():
        if parts:
            lines.append(f"build {library}: link {' '.join(parts)}\n  flags = {ninja_flags(link_flags)}")
    if reports:
        lines.append(f"build ptxas.txt: report {' '.join(reports)}")
    return "\n".join(lines) + "\n"


def build_libraries(toolkit: Path | None, build: Path) -> None:
    """Compiles what changed since the last build in ``build``, where the libraries then are."""
    archs = wanted_archs()
    build.mkdir(parents=True, exist_ok=True)
    text = build_file(toolkit, torch_root(), archs, os.environ, build, wants_ladder(archs))
    (build / "build.ninja").write_text(text)
    jobs = os.environ.get("MAX_JOBS", str(len(os.sched_getaffinity(0))))
    status = {"NINJA_STATUS": "[%f/%t, %e s] ", **os.environ}
    if subprocess.run([ninja_program(), "-C", build, "-j", jobs], env=status).returncode:
        raise SystemExit("hgemm_ops: compilation failed, see ninja's output above")


def build_for_other_torch(version: str, build: Path) -> None:
    """Compiles csrc/aten for a torch that is installed, without what it depends on, into a directory thrown away."""
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory]
        subprocess.run([*pip, f"torch=={version}"], check=True)
        output = build / f"{_aten_build.stem(version)}.so"
        cxx = shlex.split(os.environ.get("CXX", "c++"))
        subprocess.run(_aten_build.command(cxx, CSRC, Path(directory) / "torch", output), check=True)


class Library(Extension):
    """``torch``: for the override of a torch that is not the installed one, its version."""

    def __init__(self, name: str, toolkit: Path | None, torch: str | None = None) -> None:
        super().__init__(name, sources=[], py_limited_api=True)
        self.toolkit = toolkit
        self.torch = torch


class NinjaBuildExt(build_ext):
    """Builds in BUILD, which outlives pip's temporary directories, and copies from there."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Library) -> None:
        if ext.torch:
            build_for_other_torch(ext.torch, BUILD)
        else:
            build_libraries(ext.toolkit, BUILD)  # ninja knows that there is nothing left to do for the next ones
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / target.name, target)


class BuildPyWithSources(build_py):
    """Adds what _override.py compiles."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the checkout has it
        for name in _aten_build.SOURCES:
            target = Path(self.build_lib) / "hgemm_ops" / "_csrc" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CSRC / name, target)


class BuildPyWithoutKernels(build_py):
    """Says why there are no kernels: here, because pip runs setup.py several times and the build once."""

    reason: ClassVar[str]

    def run(self) -> None:
        print(f"hgemm_ops: installing without CUDA kernels, torch serves every op ({self.reason})", file=sys.stderr)
        super().run()


def main() -> None:
    archs = wanted_archs()
    toolkit, reason = find_toolkit() if archs else (None, "")
    BuildPyWithoutKernels.reason = reason
    libraries = []
    if toolkit or not archs:
        aten = _aten_build.stem(torch_version(torch_root()))
        names = ["_C", *(["_ladder"] if wants_ladder(archs) else []), aten]
        libraries = [Library(f"hgemm_ops.{name}", toolkit) for name in names]
        others = {_aten_build.stem(version): version for version in os.environ.get("HGEMM_OPS_TORCHES", "").split()}
        libraries += [Library(f"hgemm_ops.{stem}", toolkit, v) for stem, v in others.items() if stem != aten]
    with_libraries = {"build_ext": NinjaBuildExt, "build_py": BuildPyWithSources}
    setup(
        ext_modules=libraries,
        cmdclass=with_libraries if libraries else {"build_py": BuildPyWithoutKernels},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )


if __name__ == "__main__":
    main()
