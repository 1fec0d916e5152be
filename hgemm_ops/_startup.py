"""What the environment asks for when the package is imported: ``HGEMM_OPS_ENABLE``, and a report at exit."""

import atexit
import json
import os
import sys
from pathlib import Path

from . import _advice, _context, _files, _library, _override
from ._report import Report

#: Names the process whose report has the plain name, as "rank:process id". The rank is torchrun's, "" without one.
_OWNER = "HGEMM_OPS_OWNER"


def apply_environment() -> None:
    """Enables the package for the process if ``HGEMM_OPS_ENABLE`` asks for it.

    With ``HGEMM_OPS_REPORT``, the report is written when the process ends. A failure is a warning in the log.
    """
    if not _library.flag("HGEMM_OPS_ENABLE"):
        return
    try:
        _context.enable(sites=_library.flag("HGEMM_OPS_SITES"))
    except RuntimeError as error:  # numerics that cannot be guaranteed
        _library.logger.warning("HGEMM_OPS_ENABLE has no effect, torch runs as before: %s", error)
        return
    if target := os.environ.get("HGEMM_OPS_REPORT"):
        atexit.register(_write, target if target == "-" else os.path.abspath(os.path.expanduser(target)), *_role())


def _role() -> tuple[bool, int]:
    """Returns whether this process is the first one of its rank, and its process id.

    Processes that it starts later are not the first one.
    """
    rank, pid = os.environ.get("RANK", ""), os.getpid()
    owner_rank, _, owner_pid = os.environ.get(_OWNER, "none:").partition(":")
    is_first = owner_rank != rank or owner_pid == str(pid)
    if is_first:
        os.environ[_OWNER] = f"{rank}:{pid}"
    return is_first, pid


def _write(target: str, is_first: bool, pid: int) -> None:
    """Writes the report of the last :func:`enable` to ``target``, "-" for stderr.

    A process that is not the first one of its rank writes a report only if it has something to say. A forked process
    writes none: the counts of its parent are in its report.
    """
    report = _context.process_report()
    if report is None or pid != os.getpid() or not (is_first or report.rows or _override.hidden()):
        return
    rank = os.environ.get("RANK")
    if target != "-":
        path = Path(target)
        parts = [f"rank{rank}"] * bool(rank) + [f"pid{pid}"] * (not is_first)
        try:
            if not _files.is_stream(path):
                path = path.with_name(".".join([path.stem, *parts]) + path.suffix)
            _save(report, path)
            return
        except OSError as error:
            _library.logger.warning("cannot write the report to %s: %s", path, error)
    if sys.stderr is not None:
        title = f"hgemm_ops report of process {pid}" + (f", rank {rank}" if rank else "")
        sys.stderr.write(f"\n{title}\n{_text(report)}\n")
        sys.stderr.flush()


def _advises() -> bool:
    """Whether ``hgemm doctor PROGRAM`` asks for advice in place of the report."""
    return _library.flag("HGEMM_OPS_ADVISE")


def _text(report: Report) -> str:
    return _advice.to_text(_advice.of(report)) if _advises() else str(report)


def _save(report: Report, path: Path) -> None:
    if path.suffix == ".json" and not _advises():
        report.save(path)
        return
    text = json.dumps(_advice.to_dict(_advice.of(report)), indent=2) if path.suffix == ".json" else _text(report)
    _files.replace(path, f"{text}\n", f".{os.getpid()}.new")
