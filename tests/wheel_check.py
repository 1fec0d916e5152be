"""Installs a wheel beside each release of torch, in an environment of its own, and has it examined and tested there.

    python tests/wheel_check.py dist/hgemm_ops-*.whl                 # the newest of each minor release from 2.10 on
    python tests/wheel_check.py dist/hgemm_ops-*.whl 2.10.0 2.13.0   # these

Examined: the native library loads, whether csrc/aten came compiled for this torch, and `hgemm doctor`. Tested: the
tests that need neither a GPU, nor the checkout, nor are slow, copied away so that they see the wheel alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

TESTS = Path(__file__).resolve().parent
OLDEST = (2, 10)
PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "expecttest", "numpy")

EXAMINE = """
import torch, hgemm_ops
from importlib.metadata import entry_points
from pathlib import Path
from hgemm_ops import _aten_build, _library
package = Path(hgemm_ops.__file__).parent
assert package.is_relative_to({environment!r}), package
assert _library.load(), _library.reason()
assert any(point.module == "hgemm_ops_start" for point in entry_points(group="torch.backends"))
shipped = (package / (_aten_build.stem(torch.__version__) + ".so")).is_file()
kernels = hgemm_ops.variants()
rungs = sum(v.family == "ladder" for v in kernels)
print(f"torch {{torch.__version__}}: {{len(kernels) - rungs}} kernels, {{rungs}} steps,"
      f" csrc/aten {{'shipped' if shipped else 'to be compiled'}}")
"""


def releases() -> list[str]:
    """The newest release of torch on the index for each minor version from the oldest on."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"\b(\d+)\.(\d+)\.(\d+)\b", text)
    newest: dict[tuple[int, int], int] = {}
    for major, minor, patch in found:
        key = int(major), int(minor)
        if key >= OLDEST:
            newest[key] = max(newest.get(key, 0), int(patch))
    return [f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(newest.items())]


def tests(directories: tuple[str, ...]) -> list[str]:
    """Files of tests, in these directories or in all, that read nothing of the checkout."""
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if not directories or f.parent.name in directories]
    needs = re.compile(r"\bROOT\b|\b(benchmarks|integration|native_check|build_tools)\b")
    return [str(f.relative_to(TESTS)) for f in files if not needs.search(f.read_text())]


def check(wheel: Path, version: str, directories: tuple[str, ...]) -> str:
    """What was found; raises CalledProcessError, with the output on screen, where something fails."""
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory) / "env"
        shutil.copytree(TESTS, Path(directory) / "tests", ignore=shutil.ignore_patterns("__pycache__"))

        def run(*command: object) -> str:
            done = subprocess.run(
                list(map(str, command)), cwd=Path(directory) / "tests", capture_output=True, text=True
            )
            if done.returncode:
                click.echo(done.stdout + done.stderr)
                done.check_returncode()
            return done.stdout

        run(sys.executable, "-m", "venv", environment)
        python = environment / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", f"torch=={version}", wheel.resolve(), *PACKAGES)
        found = run(python, "-c", EXAMINE.format(environment=str(environment))).strip()
        run(environment / "bin" / "hgemm", "doctor")
        start = time.monotonic()
        output = run(python, "-m", "pytest", "-q", "-n", "2", "-m", "not gpu and not slow", *tests(directories))
        return f"{found}; doctor ok; {output.splitlines()[-1].strip('= ')} ({time.monotonic() - start:.0f} s)"


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("versions", nargs=-1)
@click.option("--tests", "directories", multiple=True, help="Only the tests in this directory of tests/.")
def main(wheel: Path, versions: tuple[str, ...], directories: tuple[str, ...]) -> None:
    failed = []
    for version in versions or releases():
        try:
            click.echo(check(wheel, version, directories))
        except subprocess.CalledProcessError as error:
            click.echo(f"torch {version}: {error}")
            failed.append(version)
    if failed:
        raise click.ClickException(f"failed beside torch {', '.join(failed)}")


if __name__ == "__main__":
    main()
