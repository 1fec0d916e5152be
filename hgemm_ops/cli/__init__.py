"""The ``hgemm`` command: one file per subcommand, imported when it is called."""

from __future__ import annotations

import importlib

import click

_COMMANDS = ("bench", "doctor", "explain", "info", "ladder", "report", "tune")


class _LazyGroup(click.Group):
    """Finds command ``x`` as the attribute ``x`` of ``hgemm_ops.cli.x``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hgemm_ops", prog_name="hgemm")
def main() -> None:
    """Hand-written GEMM kernels behind torch.matmul: what is there, what runs, how fast."""
