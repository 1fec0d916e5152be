"""Has the plugin loaders of vLLM and SGLang load this checkout's entry points.

    python tests/engines_check.py                  # the releases that were tried last
    python tests/engines_check.py vllm==0.33.0     # one of them

The wheels are downloaded (375 MB) to a temporary directory, and their Python is unpacked there. vLLM's loader needs
nothing else. SGLang's needs the packages in ``NEEDS``, which are installed there as well. torch and hgemm_ops are this
interpreter's. Neither engine is installed or started: that needs a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click
from helpers import pretend_installed

ENGINES = ("vllm==0.33.0", "sglang==0.5.23")
#: What the loader of an engine imports, beside the engine itself, torch, transformers and what these need.
NEEDS = {
    "sglang": (
        "aiohttp",
        "ipython",
        "msgspec",
        "orjson",
        "psutil",
        "pybase64",
        "pyzmq",
        "requests",
        "starlette",
        "triton",
    ),
}

#: Loads the plugins as the engine does in each of its processes, twice, and says whether hgemm_ops is enabled.
LOAD = {
    "vllm": "from vllm.plugins import load_general_plugins as load",
    "sglang": "from sglang.srt.plugins import load_plugins as load",
}
ENABLED = """
import sys
import torch
load()
load()
print("hgemm_ops" in sys.modules and sys.modules["hgemm_ops"]._context._last is not None)
"""
#: The environment variable by which the user of an engine chooses plugins.
CHOOSES = {"vllm": "VLLM_PLUGINS", "sglang": "SGLANG_PLUGINS"}
#: Environment variables, and whether hgemm_ops is to be enabled by the loader.
CASES = (
    ({}, False),
    ({"HGEMM_OPS_ENABLE": "1"}, True),
    ({"HGEMM_OPS_ENABLE": "1", "PLUGINS": "another"}, False),
    ({"HGEMM_OPS_ENABLE": "1", "PLUGINS": "another,hgemm_ops"}, True),
)


def pip(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, arguments)], check=True)


def check(requirement: str, directory: Path) -> None:
    """Prints what the loader did. ClickException if it is not as expected."""
    name = requirement.partition("=")[0]
    pip("download", "--no-deps", "--dest", directory / "wheel", requirement)
    (wheel,) = (directory / "wheel").iterdir()
    engine = directory / "engine"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(engine, [n for n in archive.namelist() if n.endswith(".py") or ".dist-info/" in n])
    if name in NEEDS:
        pip("install", "--target", directory / "needs", *NEEDS[name])
    installed = directory / "installed"
    installed.mkdir()
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HGEMM_OPS_")}
    found = inherited | pretend_installed(installed)
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], str(engine), str(directory / "needs")])
    for variables, expected in CASES:
        chosen = {CHOOSES[name] if key == "PLUGINS" else key: value for key, value in variables.items()}
        # import torch does not enable the package here, so that only the loader can.
        environment = found | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | chosen
        command = [sys.executable, "-c", LOAD[name] + ENABLED]
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True)
        if done.returncode or done.stdout.splitlines()[-1] != str(expected):
            raise click.ClickException(f"{requirement}, {chosen}: expected {expected}\n{done.stdout}{done.stderr}")
        click.echo(f"{requirement}, {chosen or 'nothing set'}: {'enabled' if expected else 'not enabled'}")


@click.command(help=__doc__)
@click.argument("requirements", nargs=-1)
def main(requirements: tuple[str, ...]) -> None:
    for requirement in requirements or ENGINES:
        with tempfile.TemporaryDirectory() as directory:
            check(requirement, Path(directory))


if __name__ == "__main__":
    main()
