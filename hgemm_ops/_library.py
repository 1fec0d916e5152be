"""Finds and loads the native library, and says why where there is none."""

import functools
import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger("hgemm_ops")

#: Where the library is, or would be.
PATH = Path(__file__).with_name("_C.so")


def configure_logging() -> None:
    """Applies ``HGEMM_OPS_LOG`` (a level name): without it the package adds no handler and sets no level. To be called
    once."""
    level = os.environ.get("HGEMM_OPS_LOG", "").upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError(f"HGEMM_OPS_LOG: expected debug, info, warning, error or critical, got {level.lower()!r}")
    logger.setLevel(level)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    # To stderr until the application configures logging itself, so that no line appears twice.
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    logger.addHandler(handler)


def flag(name: str) -> bool:
    """Whether a variable of the environment is set, and not to 0 or false."""
    return os.environ.get(name, "").lower() not in ("", "0", "false")


def cache_dir() -> Path:
    """Where tables and compiled libraries are kept: ``HGEMM_OPS_CACHE_DIR``, or the user's cache directory."""
    root = os.environ.get("HGEMM_OPS_CACHE_DIR")
    return Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm_ops"


@functools.cache
def reason() -> str | None:
    """Why the library is not loaded, logged once; None when it is. The first call loads it."""
    if flag("HGEMM_OPS_DISABLE"):
        return "HGEMM_OPS_DISABLE is set"
    if not PATH.is_file():
        why = f"{PATH} was not built (no nvcc at installation?)"
    else:
        try:
            torch.ops.load_library(str(PATH))
            return None
        except OSError as error:
            why = f"{PATH} does not load: {error.__cause__ or error}"
    logger.warning("%s; torch serves every op", why)
    return why


def load() -> bool:
    """Loads the library if it is not yet; False where it cannot be."""
    return reason() is None
