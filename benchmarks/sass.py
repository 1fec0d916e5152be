"""Compares the machine code of two builds, kernel by kernel: ``python benchmarks/sass.py BEFORE AFTER``.

Each argument is an object of a .cu file, or a directory such as ``build/native``, of which it takes every such object
below. A kernel counts as the same where its architecture, its use of registers, shared memory, stack and parameters,
every byte of its code and its constants are the same. Names do not count, nor in which object a kernel lies: a change
that renames a template or moves an instance to another file leaves the machine code alone, and this program shows it.
It does not compare PTX and line info.

Prints which kernels only one side has and, where both sides have one of that name, the first instructions that differ.
A side may have several copies of a kernel, and its copies that the other side lacks are printed as such. Exits with 1
where the sides differ. Needs cuobjdump, and nvdisasm for what differs, from a CUDA toolkit or from the
wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, and c++filt for readable names.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ARCH = re.compile(r"^\s*arch = (\S+)")
FUNCTION = re.compile(r"^\s*Function\s*:? (\S+?):?$")
INSTRUCTION = re.compile(r"^\s+/\*")


class Kernel(NamedTuple):
    """What two kernels must have in common to be the same."""

    arch: str
    resources: str
    code: bytes  # a digest


#: The kernels of each name, one for each architecture and object, with their objects.
Kernels = dict[str, list[tuple[Kernel, Path]]]


def find_program(name: str) -> str:
    """A program of the CUDA toolkit: on PATH, beside an nvcc, or in a wheel of this Python."""
    directories = [*sys.path, "/usr/local/cuda"]
    candidates = [
        shutil.which(name),
        *(path for directory in directories for path in Path(directory).glob(f"nvidia/cu*/bin/{name}")),
        f"/usr/local/cuda/bin/{name}",
    ]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise SystemExit(f"needs {name}: from a CUDA toolkit on PATH, or pip install nvidia-cuda-{name}")


def functions(listing: str) -> Iterator[tuple[str, str, list[str]]]:
    """The architecture, name and lines of each function in the output of ``cuobjdump --dump-sass`` or its like."""
    arch = name = ""
    lines: list[str] = []
    for line in listing.splitlines():
        if found := ARCH.match(line) or FUNCTION.match(line):
            if name:
                yield arch, name, lines
            name, lines = "", []
            if ARCH.match(line):
                arch = found[1]
            else:
                name = found[1]
        elif name:
            lines.append(line)
    if name:
        yield arch, name, lines


def sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """The names and contents of an ELF file's sections."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, entries, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(entries)]  # name ... offset, size
    for header in headers:
        start = headers[names][4] + header[0]
        yield cubin[start : cubin.index(0, start)].decode(), cubin[header[4] : header[4] + header[5]]


def digests(cubin: bytes) -> dict[str, bytes]:
    """A digest of the code and the constants of each kernel, by the kernel's name."""
    parts = dict(sections(cubin))
    kernels = [name.removeprefix(".text.") for name in parts if name.startswith(".text.")]
    return {
        name: hashlib.sha256(parts[f".text.{name}"] + b"constants" + parts.get(f".nv.constant2.{name}", b"")).digest()
        for name in kernels
    }


def run(arguments: Sequence[str | Path], directory: Path | None = None) -> str:
    path = f"{Path(arguments[0]).parent}:{os.environ.get('PATH', '')}"  # cuobjdump runs nvdisasm
    done = subprocess.run(arguments, cwd=directory, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode and "does not contain device code" not in said:
        raise SystemExit(f"{arguments[-1]}: {said}")
    return done.stdout


def read(file: Path, cuobjdump: str) -> Kernels:
    """The kernels of an object."""
    usage = run([cuobjdump, "--dump-resource-usage", file])
    resources = {(arch, name): " ".join(lines[0].split()) for arch, name, lines in functions(usage)}
    kernels: Kernels = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        run([cuobjdump, "--extract-elf", "all", file.resolve()], Path(directory))
        for cubin in sorted(Path(directory).iterdir()):
            arch = cubin.suffixes[-2].lstrip(".")
            for name, digest in digests(cubin.read_bytes()).items():
                kernels[name].append((Kernel(arch, resources[arch, name], digest), file))
    return kernels


def read_all(path: Path, cuobjdump: str) -> Kernels:
    """The kernels of an object, or of all objects below a directory."""
    files = sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]
    if not files:
        raise SystemExit(f"{path}: no object of a .cu file below")
    kernels: Kernels = defaultdict(list)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda file: read(file, cuobjdump), files):
            for name, of_name in found.items():
                kernels[name] += of_name
    return kernels


def count(kernels: Kernels) -> Counter[Kernel]:
    return Counter(kernel for of_name in kernels.values() for kernel, _ in of_name)


def disassembly(file: Path, arch: str, name: str, cuobjdump: str) -> list[str]:
    """The instructions of a kernel, one on each line."""
    listing = run([cuobjdump, "--dump-sass", "--gpu-architecture", arch, "--function", name, file])
    return [" ".join(line.split()) for _, _, lines in functions(listing) for line in lines if INSTRUCTION.match(line)]


def readable(names: Iterable[str]) -> dict[str, str]:
    """The demangled names. Without c++filt, the names as they are."""
    names = sorted(names)
    if shutil.which("c++filt") is None or not names:
        return {name: name for name in names}
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, run.stdout.splitlines(), strict=True))


def differences(
    before: Kernels, after: Kernels, show: Callable[[Path, str, str], list[str]], most_lines: int = 12
) -> list[str]:
    """The lines to print about two sides, none if they are the same.

    ``show`` disassembles a kernel.
    """
    all_before, all_after = count(before), count(after)
    lost, new = all_before - all_after, all_after - all_before
    names = {
        name for side, of in ((before, lost), (after, new)) for name in side if any(k in of for k, _ in side[name])
    }
    report = []
    for name, shown in readable(names).items():
        old = {kernel.arch: (kernel, file) for kernel, file in before.get(name, []) if kernel in lost}
        now = {kernel.arch: (kernel, file) for kernel, file in after.get(name, []) if kernel in new}
        for arch in sorted(old.keys() ^ now.keys()):
            is_copy = old[arch][0] in all_after if arch in old else now[arch][0] in all_before
            side = "before" if arch in old else "after"
            report.append(f"{'one more copy' if is_copy else 'only'} {side}: {arch} {shown}")
        for arch in sorted(old.keys() & now.keys()):
            report.append(f"differs: {arch} {shown}")
            sides = [[kernel.resources, *show(file, arch, name)] for kernel, file in (old[arch], now[arch])]
            changed = list(difflib.unified_diff(*sides, "before", "after", lineterm="", n=0))[2:]
            report += [f"    {line}" for line in changed[:most_lines]]
            report += [f"    ... and {len(changed) - most_lines} lines more"] * (len(changed) > most_lines)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    cuobjdump = find_program("cuobjdump")
    before, after = (read_all(path, cuobjdump) for path in (options.before, options.after))
    report = differences(before, after, lambda file, arch, name: disassembly(file, arch, name, cuobjdump))
    for line in report:
        print(line)
    for side, kernels in (("before", count(before)), ("after", count(after))):
        archs = Counter(kernel.arch for kernel in kernels.elements())
        print(
            f"{side}: {kernels.total()} kernels ({', '.join(f'{n} for {arch}' for arch, n in sorted(archs.items()))})"
        )
    print("different machine code" if report else "the same machine code")
    return bool(report)


if __name__ == "__main__":
    sys.exit(main())
