"""The ``hgemm`` command. Each subcommand is a module of its own, which is imported when the subcommand is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import hgemm_ops

#: The module of every subcommand. The subcommand is an attribute of the module, with its own name.
_MODULES = {
    "bench": "hgemm_ops.cli.bench",
    "doctor": "hgemm_ops.cli.doctor",
    "explain": "hgemm_ops.cli.explain",
    "info": "hgemm_ops.cli.info",
    "ladder": "benchmarks.course.command",
    "report": "benchmarks.report.command",
    "run": "hgemm_ops_start.run",
    "tune": "hgemm_ops.cli.tune",
}
_CHECKOUT = Path(__file__).resolve().parents[2]
#: Parts of the package and of a checkout that an installation may lack. The subcommands that need them then say so.
_OPTIONAL = ("benchmarks", "hgemm_ops.bench")


def _load(name: str) -> click.Command:
    """Imports a subcommand. ModuleNotFoundError if this installation lacks what it needs."""
    module = _MODULES[name]
    if module.startswith("benchmarks."):
        if not (_CHECKOUT / "benchmarks" / "course").is_dir():
            raise ModuleNotFoundError("there is no checkout", name="benchmarks")
        if str(_CHECKOUT) not in sys.path:
            sys.path.insert(0, str(_CHECKOUT))
    command: click.Command = getattr(importlib.import_module(module), name)
    return command


def _unavailable(name: str, missing: str) -> click.Command:
    """Returns a subcommand that raises an error about what is missing, whatever its arguments are."""
    if missing == "benchmarks":
        reason = f"needs a checkout of hgemm_ops, with benchmarks/ and csrc/, which {_CHECKOUT} is not"
    else:
        reason = f"needs {missing}, which is missing in {_CHECKOUT / 'hgemm_ops'}"

    @click.command(
        name,
        short_help="Not available in this installation.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: Sequence[str]) -> None:
        raise click.ClickException(f"hgemm {name} {reason}")

    return command


class _LazyGroup(click.Group):
    """Imports a subcommand when it is called, or when the help lists it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        try:
            return _load(cmd_name)
        except ModuleNotFoundError as error:
            # Another package of the name `benchmarks` may come first on sys.path.
            missing = "benchmarks" if (error.name or "").startswith("benchmarks.") else error.name
            if missing not in _OPTIONAL:
                raise
            return _unavailable(cmd_name, missing)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hgemm_ops.__version__, prog_name="hgemm")
def main() -> None:
    """GEMM kernels for torch.matmul: list them, explain the dispatcher's choice, benchmark and tune."""
    # The subcommands measure torch's own kernels, also in processes that they start. `hgemm run` sets the variable
    # again.
    os.environ.pop("HGEMM_OPS_ENABLE", None)
    hgemm_ops.disable()
