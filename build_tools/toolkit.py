"""Finds a CUDA toolkit.

The places are CUDA_HOME, CUDA_PATH, PATH, the nvidia-cuda-nvcc wheels (requirements/nvcc.txt), and /usr/local/cuda.
``python -m build_tools.toolkit`` prints the toolkit that a build would use. It fails if the build needs one and none is
usable.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from build_tools import archs

DEFAULT_HOME = Path("/usr/local/cuda")
MIN_NVCC = (12, 1)  # the first with st.async; benchmarks/cuda12.py shows it
#: The wheels that make up a toolkit, as in requirements/nvcc.txt. Without pins, pip takes the newest version that each
#: allows, and an nvcc does not work with parts of another release.
WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")


def nvcc_home(nvcc: str) -> Path | None:
    """The toolkit of an nvcc on PATH, which may be a link, a shell script or a compiler cache."""
    dry_run = subprocess.run([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE)
    return Path(top[1].strip()).resolve() if top else None


def toolkit_homes(environ: Mapping[str, str], site_dirs: Iterable[str]) -> Iterator[Path]:
    """The directories in which a CUDA toolkit may be, best first. They need not exist."""
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
    """The directory of libcudart_static.a. Distributions, cross toolkits and the wheels have different ones."""
    candidates = [home / "lib64", *sorted(home.glob("targets/*-linux/lib")), home / "lib"]
    return next((d for d in candidates if (d / "libcudart_static.a").is_file()), None)


def nvcc_release(home: Path) -> tuple[int, int] | None:
    version = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", version)
    return (int(release[1]), int(release[2])) if release else None


def compile_error(home: Path, cxx: str) -> str | None:
    """The toolkit's error for an empty kernel; None if it compiles the kernel.

    It compiles host code, too: that of a nvidia-cuda-crt of another release than nvcc's does not compile.
    """
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "empty.cu")
        source.write_text("__global__ void empty() {}\n")
        flags = ["-c", f"-arch=sm_{archs.MIN_ARCH}", f"-ccbin={cxx}", "-o", str(source.with_suffix(".o"))]
        run = subprocess.run([home / "bin" / "nvcc", *flags, source], capture_output=True, text=True)
    if run.returncode == 0:
        return None
    lines = (run.stderr + run.stdout).splitlines()
    errors = [line for line in lines if re.search("error|fatal|unsupported", line, re.IGNORECASE)] or lines
    return errors[0].strip() if errors else f"nvcc exits with {run.returncode}"


def defect(home: Path, cxx: str = "c++") -> str | None:
    """Why a toolkit that has an nvcc cannot build this library; None if it can. ``cxx`` is the host compiler."""
    if cudart_dir(home) is None:
        return "no libcudart_static.a"
    release = nvcc_release(home)
    if release is None:
        return "nvcc --version names no release"
    if release < MIN_NVCC:
        return f"nvcc {release[0]}.{release[1]} is older than {MIN_NVCC[0]}.{MIN_NVCC[1]}"
    error = compile_error(home, cxx)
    if error is None:
        return None
    advice = ""
    if home.parent.name == "nvidia":  # the toolkit consists of wheels
        pins = " ".join(f"'{wheel}=={release[0]}.{release[1]}.*'" for wheel in WHEELS)
        advice = f"; its parts have to be of one release: pip install {pins}"
    return f"nvcc {release[0]}.{release[1]} does not compile an empty kernel ({error}){advice}"


def find_toolkit(
    environ: Mapping[str, str] = os.environ, site_dirs: Sequence[str] = sys.path
) -> tuple[Path | None, str]:
    """The first usable toolkit and, where there is none, the reason."""
    rejected = []
    cxx = shlex.split(environ.get("CXX", "c++"))[-1]
    for home in toolkit_homes(environ, site_dirs):
        if not (home / "bin" / "nvcc").is_file():
            continue
        reason = defect(home, cxx)
        if reason is None:
            return home, ""
        rejected.append(f"{home}: {reason}")
    return None, "; ".join(rejected) or f"no nvcc in CUDA_HOME, PATH, the nvidia-cuda-nvcc wheels or {DEFAULT_HOME}"


def main() -> int:
    home, reason = find_toolkit()
    wanted = bool(archs.wanted_archs())
    print(home or reason, file=sys.stderr if wanted and not home else sys.stdout)
    return 1 if wanted and not home else 0


if __name__ == "__main__":
    sys.exit(main())
