"""Which architectures a build is for, and which of them each CUDA source is compiled for.

HGEMM_CUDA_ARCHS is a list, or "native" for the architectures of this machine's GPUs, or "none". The default is "80 90
90a".

- A .cu whose name, or whose directory's name, starts with sm90_ is compiled for 90a (OWN_ARCHS).
- Every other .cu is compiled for each architecture without a letter, and to PTX for the highest of them. If neither the
  .cu nor a file that it includes uses __CUDA_ARCH__, it is compiled to PTX only once, for the lowest of them. This PTX
  is assembled for each architecture, and is also the one that is kept.
- If this leaves a .cu without an architecture, it is compiled for the architectures that the list has. A list without
  90a also defines HGEMM_NO_SM90A in every source. The sm90_ sources then keep their launchers, without device code, and
  report their kernels as not built.
- "none", and "native" without a GPU, compile no .cu and need no nvcc. _C.so then has the dispatcher and the ops, which
  decide and explain as in a full build, and torch runs every matmul (core/problem.h).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from build_tools import CSRC

DEFAULT_ARCHS = "80 90 90a"
#: The architecture of files and directories with kernels for one architecture alone, by the prefix of their names.
OWN_ARCHS = {"sm90_": "90a"}
MIN_ARCH = 80


def native_archs() -> str:
    """The architectures of this machine's GPUs, by nvidia-smi. "none" without a GPU that can run the kernels."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return "none"
    archs = {int(major + minor) for major, minor in re.findall(r"^(\d+)\.(\d)$", found, re.MULTILINE)}
    own = [arch for arch in OWN_ARCHS.values() if int(arch.rstrip("a")) in archs]
    return " ".join([*(str(a) for a in archs if a >= MIN_ARCH), *own]) or "none"


def parse_archs(text: str) -> list[str]:
    """The architectures of a list, lowest first; an empty list for "none".

    Raises:
        SystemExit: the list has another form, or an architecture below MIN_ARCH.
    """
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


def asks_for_arch(source: Path, csrc: Path = CSRC) -> bool:
    """Whether a source, or a file of csrc/ that it includes, has code for some architectures only.

    CUDA's headers have such code as well. A source that does not use __CUDA_ARCH__ itself converts bfloat16 as on the
    lowest architecture, which takes as many instructions on sm_90.
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
        left += [path for name in included for path in (csrc / name, file.parent / name) if path.is_file()]
    return False


def own_arch(source: Path, csrc: Path = CSRC) -> str | None:
    """The one architecture that a source under csrc/ has kernels for, by its name or a directory's.

    None for a source for all architectures.
    """
    parts = source.relative_to(csrc).parts
    return next((arch for prefix, arch in OWN_ARCHS.items() if any(part.startswith(prefix) for part in parts)), None)


def gencode(source: Path, archs: list[str], csrc: Path = CSRC) -> list[str]:
    """nvcc's -gencode flags for one .cu, by the rules in this file's docstring."""
    portable = [a for a in archs if not a.endswith("a")]
    own = own_arch(source, csrc)
    chosen = [own] if own in archs else portable or archs
    once = chosen == portable and not asks_for_arch(source, csrc)
    virtual = {a: portable[0] if once else a for a in chosen}
    flags = [f"-gencode=arch=compute_{virtual[a]},code=sm_{a}" for a in chosen]
    if chosen == portable:
        flags.append(f"-gencode=arch=compute_{virtual[portable[-1]]},code=compute_{virtual[portable[-1]]}")
    return flags
