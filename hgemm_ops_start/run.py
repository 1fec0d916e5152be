"""``hgemm run``: runs a Python program with its matmuls on the kernels of this package.

The command sets environment variables and then replaces itself by ``python program …``. So the program's exit status,
tracebacks, signals and ``__main__`` are Python's own, and so is the moment at which it imports torch. ``import torch``
enables this package (``autoload``), in the program and in every Python process that the program starts.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.metadata import entry_points

import click


def _interpreter() -> list[str]:
    """Returns this interpreter's command line up to the program: ``python -u`` if it runs as ``python -u -m …``."""
    program = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    flags = program[1:-2] if program[-2:-1] == ["-m"] else program[1:-1]
    return [sys.executable, *flags]


def _why_torch_does_not_load() -> str | None:
    """Returns why ``import torch`` will not enable this package in a new process; None if it will."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD is set, so torch loads no extension: unset it"
    if not any(point.module == __package__ for point in entry_points(group="torch.backends")):
        return "hgemm_ops is not installed, so torch does not find its entry point: pip install it"
    return None


def _refuse_unknown(variant: str | None) -> None:
    """Raises click.BadParameter if there is no kernel of this name. Only such a name makes the command import torch.

    The package is imported without its environment variables, which the program reads: it would enable itself here.
    """
    if variant in (None, "auto", "torch"):
        return
    own = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HGEMM_OPS_")}
    try:
        from hgemm_ops import _variants

        _variants.resolve(variant)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--variant'") from None
    except Exception:
        return  # what does not import here does not import in the program either, which says why
    finally:
        os.environ.update(own)


def _refuse_command(program: str) -> None:
    """Raises click.UsageError if PROGRAM is not a script but a command, as in ``hgemm run python train.py``."""
    is_python = re.fullmatch(r"python[\d.]*", os.path.basename(program)) and not os.path.isdir(program)
    if shutil.which(program) and (is_python or not os.path.exists(program)):
        raise click.UsageError(
            f"{program} is a command, but PROGRAM is a Python script, or with -m a module: hgemm run train.py. "
            "HGEMM_OPS_ENABLE=1 enables the Python processes of a command"
        )


def _variables(**options: str | bool | None) -> dict[str, str]:
    """Returns the environment variables for the options that are given."""
    given = {name: value for name, value in options.items() if value}
    return {f"HGEMM_OPS_{name.upper()}": "1" if value is True else str(value) for name, value in given.items()}


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is the name of a module, as with `python -m`.")
@click.option("--float32", type=click.Choice(["strict", "split"]), help="The mode of float32 matmuls.")
@click.option(
    "--numerics",
    type=click.Choice(["fast", "batch_invariant", "batch_invariant_or_raise"]),
    help="Whether a row's bits may depend on the other rows.",
)
@click.option("--variant", metavar="NAME", help="The kernel for every matmul; torch for torch's own.")
@click.option("--tune", is_flag=True, help="Time untuned shapes at their first matmul.")
@click.option("--sites", is_flag=True, help="Name the module of each matmul in the report.")
@click.option("--advise", is_flag=True, help="Say in place of the report which settings would help: `hgemm doctor`.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write the report to this file; as JSON for `hgemm tune` if its name ends in .json. Default: stderr.",
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    module: bool,
    float32: str | None,
    numerics: str | None,
    variant: str | None,
    tune: bool,
    sites: bool,
    advise: bool,
    report: str | None,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a Python program with hgemm_ops enabled.

    PROGRAM is a script, or with -m a module. It runs as `python PROGRAM ARGUMENTS` does. When it ends, the report of
    its matmuls is printed, also after an exception or Ctrl-C. Python processes that it starts are enabled too. Each of
    them writes a report of its own if it ran matmuls.

    \b
        hgemm run train.py --epochs 3
        hgemm run --float32 split -m my.module
        torchrun --nproc-per-node 8 --no-python hgemm run train.py
    """
    if why := _why_torch_does_not_load():
        raise click.ClickException(f"hgemm run: {why}")
    if not module:
        _refuse_command(program)
    _refuse_unknown(variant)
    if report and report != "-":
        report = os.path.abspath(report)
    os.environ.update(_variables(enable=True, float32=float32, numerics=numerics, variant=variant, tune=tune))
    os.environ.update(_variables(sites=sites, advise=advise))
    if report or not os.environ.get("HGEMM_OPS_REPORT"):  # else an outer `hgemm run` has said where reports go
        rank, pid = os.environ.get("RANK", ""), os.getpid()  # the program gets this process's id
        os.environ.update(_variables(report=report or "-", owner=f"{rank}:{pid}"))
    command = [*_interpreter(), *(["-m"] if module else []), program, *arguments]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if it was closed when this process started
            stream.flush()
    os.execv(command[0], command)
