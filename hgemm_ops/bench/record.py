"""Result files: what was measured, on which machine, and with which sources."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

import hgemm_ops
from hgemm_ops import _native

from . import lean

SCHEMA = 1
_LARGE = (
    "random",
    "zoo",
    "tuned",
    "ladder_seeds",
    "ladder_ncu",
    "integration",
    "kernels_ncu",
    "tiny_batches",
    "grouped",
    "map",
)

Ignored = Callable[[str, bool], bool]


def repository() -> Path | None:
    """The checkout this package runs from, or None where it was installed from a wheel."""
    root = Path(hgemm_ops.__file__).resolve().parent.parent
    return root if (root / "csrc").is_dir() else None


def ignore_rules(gitignore: Path) -> Ignored:
    """A function that tells whether git ignores an entry, given its name and whether it is a directory.

    It understands the names and ``*`` patterns that this repository's .gitignore uses.

    Raises:
        ValueError: the file uses more of gitignore's language.
    """
    lines = gitignore.read_text().splitlines() if gitignore.exists() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for pattern in patterns:
        if "/" in pattern.rstrip("/") or pattern.startswith("!") or "\\" in pattern:
            raise ValueError(f"{gitignore}: only names and * patterns are understood, got {pattern!r}")

    def ignored(name: str, is_directory: bool) -> bool:
        return any(
            fnmatchcase(name, pattern.rstrip("/")) and (is_directory or not pattern.endswith("/"))
            for pattern in patterns
        )

    return ignored


def _object_id(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).digest()


def git_tree_id(directory: Path, ignored: Ignored) -> str | None:
    """The id that git would give to ``directory`` as it is on disk, or None if git would see no file in it.

    It equals ``git rev-parse HEAD:<directory>`` in a clean checkout, and another id where there are uncommitted edits.
    It needs neither git nor the ``.git`` directory, so a copy of the sources on another machine has the same id.
    """

    def tree(path: Path) -> bytes | None:
        entries: list[tuple[bytes, bytes, bytes]] = []  # name, mode, id
        for entry in os.scandir(path):
            is_directory = entry.is_dir(follow_symlinks=False)
            if ignored(entry.name, is_directory):
                continue
            name = os.fsencode(entry.name)
            if is_directory:
                if child := tree(Path(entry.path)):
                    entries.append((name, b"40000", child))
            elif entry.is_symlink():
                entries.append((name, b"120000", _object_id("blob", os.fsencode(os.readlink(entry.path)))))
            else:
                executable = entry.stat().st_mode & stat.S_IXUSR
                content = Path(entry.path).read_bytes()
                entries.append((name, b"100755" if executable else b"100644", _object_id("blob", content)))
        if not entries:
            return None
        # git sorts a directory as if its name ended in a slash.
        entries.sort(key=lambda e: e[0] + b"/" if e[1] == b"40000" else e[0])
        return _object_id("tree", b"".join(mode + b" " + name + b"\0" + oid for name, mode, oid in entries))

    oid = tree(directory)
    return oid.hex() if oid else None


def _output(*command: str) -> str | None:
    """The output of ``command``, or None if there is no such program or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def source() -> dict[str, Any]:
    """``commit`` (HGEMM_OPS_COMMIT where there is no git directory), ``dirty``, and the tree id of ``csrc``."""
    root = repository()
    if root is None:
        return {"commit": None, "dirty": None, "csrc": None}
    csrc = git_tree_id(root / "csrc", ignore_rules(root / ".gitignore"))
    if not (root / ".git").exists():
        return {"commit": os.environ.get("HGEMM_OPS_COMMIT"), "dirty": None, "csrc": csrc}
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    ours = ("csrc", "hgemm_ops", "setup.py", "build_tools")
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--", *ours)
    return {"commit": commit, "dirty": None if changes is None else bool(changes), "csrc": csrc}


def changed_files(old: str | None, new: str | None) -> list[str] | None:
    """The files in which two trees of ``csrc`` differ, or None if git does not know both trees."""
    root = repository()
    if root is None or old is None or new is None:
        return None
    names = _output("git", "-C", str(root), "diff", "--name-only", old, new, "--")
    return None if names is None else names.splitlines()


def allows_tf32() -> bool:
    """Whether torch may compute float32 matmuls on CUDA in TF32, whichever of torch's settings says so.

    ``allow_tf32`` cannot be read once TF32 was allowed through ``fp32_precision``: it raises a RuntimeError.
    ``fp32_precision`` can always be read, follows ``allow_tf32``, and resolves to the setting of all backends where
    there is none for CUDA matmuls.
    """
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def environment() -> dict[str, Any]:
    """The GPU, driver, versions, sources and date that every result file carries."""
    facts: dict[str, Any] = {
        "gpu": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hgemm_ops": hgemm_ops.__version__,
        **source(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        facts |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "arch": f"sm_{properties.major}{properties.minor}",
            "sm_count": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "dram_gbs": _native.device_facts(torch.cuda.current_device()).dram_gbs,
            "driver": driver.splitlines()[0] if driver else None,
            "allow_tf32": allows_tf32(),
            "allow_fp16_accumulation": torch.backends.cuda.matmul.allow_fp16_accumulation,
            "allow_fp16_reduced_precision_reduction": (
                torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
            ),
        }
    return facts


def gpu_slug(name: str) -> str:
    """The directory of a GPU's results: "NVIDIA H200" -> "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")


def document(**content: Any) -> dict[str, Any]:
    """A result file: the schema's number and the environment, then ``content``."""
    return {"schema": SCHEMA, "environment": environment(), **content}


def save(results: Mapping[str, Any], path: Path) -> None:
    """Writes a document in the form of ``lean``, which ``load`` completes.

    The file is compressed if its path ends with ".xz".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (lean.text(lean.lean(results)) + "\n").encode()
    path.write_bytes(lzma.compress(text, preset=9) if path.suffix == ".xz" else text)


def path(directory: Path, name: str) -> Path:
    """The path of a result of this name. Results with many rows are compressed."""
    is_large = name in _LARGE or name.endswith("-batch_invariant")
    return directory / f"{name}.json{'.xz' if is_large else ''}"


def files(directory: Path, pattern: str = "*") -> dict[str, Path]:
    """The result files of a directory, ``*.json`` and ``*.json.xz``, by their names without suffixes."""
    found = [*directory.glob(f"{pattern}.json"), *directory.glob(f"{pattern}.json.xz")]
    return {path.name.split(".")[0]: path for path in sorted(found)}


def directories(results: Path) -> list[Path]:
    """The GPUs' directories that have result files, ordered by their number of files, most first, and then by name."""
    counts = {path: len(files(path)) for path in results.glob("*")}
    return sorted((path for path, count in counts.items() if count), key=lambda path: (-counts[path], path))


def load(path: Path) -> dict[str, Any]:
    """Reads a result file and completes it.

    Raises:
        ValueError: the file has another schema.
    """
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    document: dict[str, Any] = json.loads(content)
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema must be {SCHEMA}, got {document.get('schema')!r}")
    return lean.complete(document)
