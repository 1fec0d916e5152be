"""``hgemm doctor``: checks the installation. The exit status is 1 if something is broken.

``hgemm doctor PROGRAM`` runs a program and says which settings would make its matmuls faster (``_advice``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import torch

import hgemm_ops
from hgemm_ops import _devices, _library, _native, _override, _tables
from hgemm_ops_start.run import run

_OLDEST_TORCH = (2, 10)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    ``status`` is "ok", "broken", or "note" where something is absent by choice or circumstance.
    """

    check: str
    status: str
    text: str


def _torch() -> Finding:
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert numbers is not None, torch.__version__
    good = tuple(map(int, numbers.groups())) >= _OLDEST_TORCH
    text = f"{torch.__version__}, CUDA {torch.version.cuda}"
    return Finding("torch", "ok" if good else "broken", text if good else f"{text}: 2.10 or newer is needed")


def _native_library() -> Finding:
    if _library.load():
        forced_only = sum(v.forced_only for v in hgemm_ops.variants())
        automatic = len(hgemm_ops.variants()) - forced_only
        text = f"{_library.PATH}, {automatic} kernels, and {forced_only} that run only when forced"
        if _native.lib().hgemm_has_device_code():
            return Finding("library", "ok", text)
        # `make demo` builds such a library without a GPU, where it is enough. With a GPU it runs no matmul.
        text += "; built without device code (HGEMM_CUDA_ARCHS=none), so torch runs every matmul"
        return Finding("library", "broken" if _devices.may_exist() else "note", text)
    # An installation without a library is sound: torch runs every op. A library that does not load is broken.
    expected = _library.flag("HGEMM_OPS_DISABLE") or not _library.PATH.is_file()
    return Finding("library", "note" if expected else "broken", str(_library.reason()))


def _override_of_torch() -> Finding:
    if _override.start():
        if hidden := _override.hidden():
            return Finding("override", "note", f"another package overrides: {'; '.join(hidden)}")
        return Finding("override", "ok", "torch's CUDA matmuls use this package while a context is active")
    expected = not (_library.load() and _devices.may_exist())
    return Finding("override", "note" if expected else "broken", str(_override.reason()))


def _dispatcher() -> Finding:
    choice = hgemm_ops.explain(M=4097, N=4097, K=4097, arch="sm_90")
    return Finding("dispatcher", "ok" if _library.load() else "note", f"4097^3 on sm_90: {choice.chosen}")


def _device() -> Finding:
    if not torch.cuda.is_available():
        return Finding("device", "note", "no GPU: torch runs the ops on the CPU")
    names, faults = [], []
    for ordinal in range(torch.cuda.device_count()):
        names.append(torch.cuda.get_device_name(ordinal))
        if fault := _native.device_fault(ordinal) if _library.load() else "":
            faults.append(f"{names[-1]}: {fault}; torch runs every matmul on this GPU")
    return Finding("device", "broken" if faults else "ok", "; ".join(faults) or ", ".join(names))


def _table() -> Finding:
    _, broken = _tables.read_all()
    if broken:
        return Finding("table", "broken", "; ".join(broken))
    usable = torch.cuda.is_available() and _library.load() and not _native.device_fault(torch.cuda.current_device())
    if not usable:
        return Finding("table", "note", "no usable GPU, so no tuning table applies")
    _tables.ensure()
    shapes = _native.lib().hgemm_table_size(_native.device_facts(torch.cuda.current_device()))
    if shapes == 0:
        text = "no tuned shapes for this GPU. On Hopper the cost model chooses a kernel; on other GPUs 16-byte-aligned "
        text += "matmuls stay on torch until `hgemm tune` or HGEMM_OPS_TUNE=1 measures them"
        return Finding("table", "note", text)
    own = [str(path) for path in _tables.files() if path.parent != _tables.shipped_dir()]
    text = f"{shapes} tuned shapes for this GPU" + (f", including those in {', '.join(own)}" if own else "")
    return Finding("table", "ok", text)


def _correctness() -> Finding:
    """Compares a matmul with sizes that no tile divides with float64. The error may be at most twice torch's own.

    It runs on the GPU if there is one.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(257, 333, generator=generator, device=device).half()
    b = torch.randn(333, 129, generator=generator, device=device).half()
    exact = a.double() @ b.double()
    ours = (torch.ops.hgemm.matmul(a, b).double() - exact).abs().max().item()
    torchs = ((a @ b).double() - exact).abs().max().item()
    text = f"257x129x333 on {device}: error {ours:.2e}, torch's {torchs:.2e}"
    return Finding("correctness", "ok" if ours <= 2 * torchs else "broken", text)


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _torch,
    _native_library,
    _override_of_torch,
    _dispatcher,
    _device,
    _table,
    _correctness,
)


def examine() -> list[Finding]:
    """Runs every check, in order. A check that raises is reported as broken."""
    findings = []
    for check in _CHECKS:
        try:
            findings.append(check())
        except Exception as error:
            findings.append(Finding(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}"))
    return findings


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is the name of a module, as with `python -m`.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def doctor(as_json: bool, module: bool, program: tuple[str, ...]) -> None:
    """Check the installation. The exit status is 1 if something is broken.

    With a PROGRAM and its arguments: run it as `hgemm run --advise` does, and print what its matmuls gain, which of
    them torch runs and why, and which setting would change that. A step or two of a training loop suffice.
    """
    if program:
        if as_json:
            raise click.UsageError("with a program: hgemm run --advise --report advice.json PROGRAM")
        run.main(["--advise", *(["-m"] if module else []), *program], prog_name="hgemm doctor")
    if module:
        raise click.UsageError("-m: the name of a module is missing")
    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        for f in findings:
            click.echo(f"{f.status:<7} {f.check:<12} {f.text}")
    if any(f.status == "broken" for f in findings):
        raise SystemExit(1)
