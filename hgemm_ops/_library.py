"""Finds and loads the native library, and gives the reason where there is none."""

import functools
import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger("hgemm_ops")

#: The path of the library, whether or not it was built.
PATH = Path(__file__).with_name("_C.so")


@functools.cache
def configure_logging() -> None:
    """Applies the level that ``HGEMM_OPS_LOG`` names to the logger, and gives it a handler, once.

    Without the variable, the package adds no handler and sets no level. ValueError if the level is unknown.
    """
    level = os.environ.get("HGEMM_OPS_LOG", "").upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ValueError(f"HGEMM_OPS_LOG: expected debug, info, warning, error or critical, got {level.lower()!r}")
    logger.setLevel(level)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    # This handler writes to stderr only until the application configures logging itself. Otherwise every line would
    # appear twice.
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    logger.addHandler(handler)


def flag(name: str) -> bool:
    """Whether an environment variable is set to anything but an empty string, 0 or false."""
    return os.environ.get(name, "").lower() not in ("", "0", "false")


def cache_dir() -> Path:
    """Returns the directory of tuning tables and compiled libraries.

    It is ``HGEMM_OPS_CACHE_DIR``, or "hgemm_ops" in the user's cache directory. RuntimeError if there is no home
    directory that this could be in.
    """
    try:
        if root := os.environ.get("HGEMM_OPS_CACHE_DIR"):
            return Path(root).expanduser()  # nobody else has expanded what a program or a Dockerfile has set
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgemm_ops"
    except RuntimeError as error:
        raise RuntimeError("there is no home directory: set HGEMM_OPS_CACHE_DIR") from error


@functools.cache
def reason() -> str | None:
    """Returns why the library is not loaded, or None if it is.

    The first call loads it, and logs a warning if that fails.
    """
    if flag("HGEMM_OPS_DISABLE"):
        return "HGEMM_OPS_DISABLE is set"
    if not PATH.is_file():
        why = f"{PATH} was not built, probably because the installation found no nvcc"
    else:
        try:
            torch.ops.load_library(str(PATH))
            return None
        except OSError as error:
            why = f"{PATH} cannot be loaded: {error.__cause__ or error}"
    logger.warning("%s; torch runs every op", why)
    return why


def load() -> bool:
    """Loads the library if it is not loaded yet. Returns False if it cannot be loaded."""
    return reason() is None
