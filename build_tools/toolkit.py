"""Finds a CUDA toolkit: in CUDA_HOME, CUDA_PATH, PATH, the nvidia-cuda-nvcc wheels (requirements/nvcc.txt), and
/usr/local/cuda.

``python -m build_tools.toolkit`` says which one a build would take. It fails where the build needs one and none is
usable.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from build_tools import archs

DEFAULT_HOME = Path("/usr/local/cuda")
MIN_NVCC = (12, 1)  # the first with st.async: benchmarks/cuda12.py
COMPRESSING_NVCC = (12, 8)  # the first with --compress-mode


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


def main() -> int:
    home, reason = find_toolkit()
    wanted = bool(archs.wanted_archs())
    print(home or reason, file=sys.stderr if wanted and not home else sys.stdout)
    return 1 if wanted and not home else 0


if __name__ == "__main__":
    sys.exit(main())
