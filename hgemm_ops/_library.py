"""Finds and loads the native library, and says why where there is none."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger("hgemm_ops")

_PATH = Path(__file__).with_name("_C.so")


class _StderrIfUnconfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr until the application configures logging itself, so that no line appears twice."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def configure_logging() -> None:
    """Applies ``HGEMM_OPS_LOG`` (a level name): without it the package adds no handler and sets no level."""
    level = os.environ.get("HGEMM_OPS_LOG", "").upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError(f"HGEMM_OPS_LOG: expected debug, info, warning, error or critical, got {level.lower()!r}")
    logger.setLevel(level)
    if not any(isinstance(handler, _StderrIfUnconfigured) for handler in logger.handlers):
        handler = _StderrIfUnconfigured()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def disabled() -> bool:
    """Whether ``HGEMM_OPS_DISABLE`` asks for torch everywhere."""
    return flag("HGEMM_OPS_DISABLE")


def flag(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")


def cache_dir() -> Path:
    """Where tables and compiled libraries are kept: ``HGEMM_OPS_CACHE_DIR``, or the user's cache directory."""
    root = os.environ.get("HGEMM_OPS_CACHE_DIR")
    return Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm_ops"


def path() -> Path:
    """Where the library is, or would be."""
    return _PATH


@functools.cache
def _load() -> str | None:
    """Loads the library once; the reason why not, or None."""
    if disabled():
        return "HGEMM_OPS_DISABLE is set"
    if not path().is_file():
        reason = f"{path()} was not built (no nvcc at installation?)"
    else:
        try:
            torch.ops.load_library(str(path()))
        except OSError as error:
            reason = f"{path()} does not load: {error.__cause__ or error}"
        else:
            return None
    logger.warning("%s; torch serves every op", reason)
    return reason


def load() -> bool:
    """Loads the library if it is not yet; False (with the reason logged once) where it cannot be."""
    return _load() is None


def reason() -> str | None:
    """Why the library is not loaded; None when it is."""
    return _load()
