"""Checks the sources against CUDA 12: its headers compile the host code, and its assembler takes the kernels' PTX.

The package index has CUDA 12's headers and ptxas as wheels, but no nvcc before 13. So the C++ compiler compiles the
host code of launchers and tensor maps against the old headers. The toolkit at hand compiles files of kernels to PTX,
and the old ptxas assembles this PTX as its own PTX ISA. An instruction or a function that CUDA 12 lacks is an error.
Everything is downloaded to a temporary directory.

12.0 lacks st.async. 12.1 to 12.8 take everything, but serialise wgmma (C7515) in every kernel of sm90_skinny, and 12.8
also in kernels of sm90_wgmma. 12.9 does not.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from build_tools import CSRC, archs, ninja, toolkit  # noqa: E402

#: The PTX ISA of each release, from the CUDA Toolkit's release notes.
PTX_ISA = {"12.0": "8.0", "12.1": "8.1", "12.2": "8.2", "12.3": "8.3", "12.4": "8.4", "12.5": "8.5", "12.6": "8.5"}
PTX_ISA |= {"12.8": "8.7", "12.9": "8.8"}
HOST = ("tile/tensor_map.cu", "tile/counters.cu")
# Launchers are templates, which this source instantiates.
LAUNCHES = """\
#define __CUDA_ARCH_LIST__ 800, 900
#include "core/launch.cuh"
void kernel(int);
cudaError_t launch(cudaStream_t stream) {
  if (const cudaError_t e = hgemm::enqueue(kernel, 1, 32, 0, stream, 1)) return e;
  return hgemm::enqueue_clusters(kernel, 1, 32, 0, 1, true, stream, 1);
}
"""


def install(release: str, directory: Path) -> Path:
    wheels = [f"nvidia-cuda-{part}-cu12=={release}.*" for part in ("nvcc", "runtime")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory)]
    subprocess.run([*pip, *wheels], check=True)
    return directory / "nvidia"


def compile_host(cuda: Path, directory: Path) -> list[str]:
    """The files that do not compile against these CUDA headers."""
    launches = directory / "launches.cc"
    launches.write_text(LAUNCHES)
    includes = [f"-I{path}" for path in (CSRC, cuda / "cuda_runtime" / "include", cuda / "cuda_nvcc" / "include")]
    command = ["c++", "-std=c++17", "-fsyntax-only", *includes, "-x", "c++"]
    sources = [*(CSRC / name for name in HOST), launches]
    return [source.name for source in sources if subprocess.run([*command, source]).returncode]


def assemble(name: str, ptxas: Path, isa: str, directory: Path, most: int | None = None) -> str:
    """Compiles a file of kernels to PTX and assembles it with ``ptxas``, at most ``most`` of its units.

    Returns the assembler's error, or "" where there is none.
    """
    home, why = toolkit.find_toolkit()
    if home is None:
        raise click.ClickException(why)
    arch = archs.own_arch(CSRC / name) or "90"
    ptx, cubin = directory / "kernels.ptx", directory / "kernels.cubin"
    flags = ["-std=c++17", "-O3", "-ptx", f"-arch=compute_{arch}", f"-I{CSRC}"]
    serialised = 0
    for _, unit in ninja.units(CSRC / name, directory)[:most]:
        subprocess.run([home / "bin" / "nvcc", *flags, "-o", ptx, unit], check=True)
        ptx.write_text(re.sub(r"^\.version .*$", f".version {isa}", ptx.read_text(), count=1, flags=re.MULTILINE))
        run = subprocess.run([ptxas, f"-arch=sm_{arch}", "-o", cubin, ptx], capture_output=True, text=True)
        if run.returncode:
            return run.stderr.splitlines()[0]
        serialised += run.stderr.count("(C7515)")
    if serialised:
        click.echo(f"{name}: assembled, but slowly: wgmma is serialised in {serialised} kernels")
    return ""


@click.command(help=__doc__)
@click.option("--release", type=click.Choice(list(PTX_ISA)), default=".".join(map(str, toolkit.MIN_NVCC)))
@click.option(
    "--kernels", multiple=True, default=("kernels/sm90_skinny/instances.cu",), show_default=True, help="Of csrc/."
)
@click.option("--units", type=click.IntRange(1), help="At most so many of the units that each file is compiled in.")
def main(release: str, kernels: tuple[str, ...], units: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        cuda = install(release, directory)
        failed = compile_host(cuda, directory)
        for kernel in kernels:
            error = assemble(kernel, cuda / "cuda_nvcc" / "bin" / "ptxas", PTX_ISA[release], directory, units)
            failed += [f"{kernel}: {error}"] if error else []
    if failed:
        raise click.ClickException(f"CUDA {release} does not take {'; '.join(failed)}")
    click.echo(f"CUDA {release} takes the launchers, {shlex.join(HOST)} and {shlex.join(kernels)}")


if __name__ == "__main__":
    main()
