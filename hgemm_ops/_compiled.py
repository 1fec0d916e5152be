"""Libraries that this machine compiles: once, into the cache directory, from where only trusted ones are loaded."""

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from . import _files, _library

_Library = TypeVar("_Library", bound=ctypes.CDLL)

#: Compiles a library into a directory that only this process writes, and returns its path. The second argument says
#: for how long the library is kept, for the log.
Compile = Callable[[Path, str], Path]


def load(folder: str, name: str, compile_: Compile, kind: type[_Library], patience: float) -> _Library:
    """Returns a library from a folder of the cache directory, where it is compiled once.

    A library is code that runs in this process, and many users may share the cache directory. So a library is only
    loaded if it and its folder belong to this user or to root, and if nobody else may write them. Otherwise, and if the
    cache directory cannot be written, this process compiles a library of its own.

    Args:
        folder: the name of the folder.
        name: that of the file, which depends on all that the library is made of.
        compile_: see :data:`Compile`. Its errors are raised.
        kind: how the library is loaded.
        patience: for how many seconds to wait for another process that compiles into the folder.
    """
    try:
        opened = _files.open_private_folder(_library.cache_dir() / folder)
    except (OSError, RuntimeError) as error:  # RuntimeError if there is no home directory
        return _alone(compile_, kind, error)
    try:
        with _files.locked_folder(opened, patience):
            library = _load_from(opened, name, kind)
            if library is None:
                with tempfile.TemporaryDirectory() as directory:
                    _files.copy_into_folder(compile_(Path(directory), "once"), opened, name)
                library = _load_from(opened, name, kind)
                assert library is not None
            return library
    except OSError as error:
        return _alone(compile_, kind, error)
    finally:
        os.close(opened)


def _load_from(folder: int, name: str, kind: type[_Library]) -> _Library | None:
    """Loads the library from an open folder; None if it is not there.

    It is loaded through the descriptor of the file that was checked, so that nobody can exchange the file in between.
    PermissionError if it may be somebody else's.
    """
    try:
        file = _files.open_private(name, folder)
    except FileNotFoundError:
        return None
    try:
        library = kind(f"/proc/self/fd/{file}")
    except BaseException:
        os.close(file)
        raise
    return library  # the file stays open: the loader takes two files of one name for the same, whatever they contain


def _alone(compile_: Compile, kind: type[_Library], why: Exception) -> _Library:
    """Compiles the library for this process alone, into a new directory that is removed when it is loaded."""
    when = f"for this process alone, because the cache directory cannot be used: {why}"
    with tempfile.TemporaryDirectory() as directory:
        return kind(str(compile_(Path(directory), when)))
