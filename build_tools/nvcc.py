"""Runs nvcc for ninja, and leaves the text of the PTX out of the line info: ``python nvcc.py DEPFILE NVCC ARGUMENT...``

With -lineinfo, ptxas puts the whole PTX into each cubin, and also which SASS belongs to which line of the PTX, for
tools that show both. These sections are half of a compressed library. The mapping from SASS to lines of the source
stays. The PTX that is kept for newer GPUs loses the numbers of the source's lines, which are a quarter of it.

nvcc has no option for this. So its steps, which --dryrun prints, run here one by one, and their files are changed in
between.

The preprocessor is one step for the host and one for each architecture. It also writes which files it read. DEPFILE
gets all files that any of these steps read. ``nvcc -M`` would need one more run of the preprocessor.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SECTIONS = (b".nv_debug_ptx_txt", b".nv_debug_line_sass")


def blank_ptx(cubin: Path) -> None:
    """Overwrites the sections with zeros, which compress to nothing. The sections keep their sizes."""
    elf = bytearray(cubin.read_bytes())
    assert elf[:5] == b"\x7fELF\x02", f"{cubin}: not a 64-bit ELF file"
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]  # name ... offset, size
    for header in headers:
        start, offset, length = headers[names][4] + header[0], header[4], header[5]
        if elf[start : elf.index(0, start)] in SECTIONS:
            elf[offset : offset + length] = bytes(length)
    cubin.write_bytes(elf)


def strip_lines(ptx: Path) -> None:
    """Removes the numbers of the source's lines from a file of PTX."""
    ptx.write_bytes(re.sub(rb"^\t\.loc\t.*\n", b"", ptx.read_bytes(), flags=re.MULTILINE))


def write_depfile(depfile: Path, target: str, parts: Iterable[Path]) -> None:
    """Writes one rule for ``target``, with all files that several depfiles name.

    A space in a path is escaped, and stays so.
    """
    names: dict[str, None] = {}
    for part in parts:
        _, _, prerequisites = part.read_text().replace("\\\n", " ").partition(": ")
        names.update(dict.fromkeys(re.split(r"(?<!\\)\s+", prerequisites.strip())))
    depfile.write_text(f"{target}: {' '.join(names)}\n")


def main(depfile: str, command: list[str]) -> int:
    target = command[command.index("-o") + 1]
    in_one_step = [*command, "-MD", "-MT", target, "-MF", depfile]
    with tempfile.TemporaryDirectory() as directory:
        environ = {**os.environ, "TMPDIR": directory}
        dry_run = subprocess.run([*command, "--dryrun"], env=environ, stderr=subprocess.PIPE, text=True)
        steps = re.findall(r"^#\$ (.+)$", dry_run.stderr, re.MULTILINE)
        if dry_run.returncode or not any(step.startswith("ptxas ") for step in steps):
            return subprocess.run(in_one_step).returncode  # nvcc reports the error, or it has no such steps
        dependencies: list[Path] = []
        for step in steps:
            if step.startswith("rm "):
                continue  # the directory is removed as a whole
            if variable := re.match(r"(\w+)=(.*)$", step):
                environ[variable[1]] = variable[2].strip()
                continue
            if " -E -x c++ " in step:
                dependencies.append(Path(directory, f"{len(dependencies)}.d"))
                step += f" -MD -MT target -MF {shlex.quote(str(dependencies[-1]))}"
            if step.startswith("fatbinary "):  # after ptxas has read them
                for ptx in re.findall(r"kind=ptx,[^\"]*?file=([^\",]+)", step):
                    strip_lines(Path(ptx))
            if code := subprocess.run(["sh", "-c", step], env=environ).returncode:
                return code
            if step.startswith("ptxas "):
                words = shlex.split(step)
                blank_ptx(Path(words[words.index("-o") + 1]))
        assert dependencies, f"nvcc --dryrun names no preprocessor: {steps}"
        write_depfile(Path(depfile), target, dependencies)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
