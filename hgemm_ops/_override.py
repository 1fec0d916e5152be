"""Starts the override of torch's matmuls (``csrc/aten``): finds the library for this torch, or compiles it once."""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import torch

from . import _aten_build, _devices, _forks, _library, _native
from . import _compiled as _compiled_library

_PACKAGE = Path(__file__).parent

_loaded: list[ctypes.PyDLL] = []  # the library of the override, once it is registered
_logged: set[str] = set()


_PATIENCE = 120.0  # seconds for another process that compiles the same library


def _command(output: Path) -> list[str]:
    """Returns the compiler's command line. RuntimeError if the sources or the compiler are missing."""
    cxx = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(cxx[0]) is None:
        raise RuntimeError(f"there is no C++ compiler {cxx[0]!r}: install one, or set CXX")
    return _aten_build.command(cxx, _csrc(), Path(torch.__file__).parent, output)


def _csrc() -> Path:
    """Returns the directory of the sources. RuntimeError if one is missing."""
    installed, checkout = _PACKAGE / "_csrc", _PACKAGE.parent / "csrc"
    csrc = installed if installed.is_dir() else checkout
    missing = [name for name in _aten_build.SOURCES if not (csrc / name).is_file()]
    if missing:
        raise RuntimeError(f"{csrc / missing[0]} is missing")
    return csrc


def _name() -> str:
    """Returns the name of the compiled library, which depends on the sources and on torch."""
    text = b"".join((_csrc() / name).read_bytes() for name in _aten_build.SOURCES)
    digest = hashlib.sha256(text + torch.__version__.encode()).hexdigest()[:16]
    return f"{_aten_build.stem(torch.__version__)}-{digest}.so"


def _compile(directory: Path, when: str) -> Path:
    """Compiles the library into a directory that only this process writes. RuntimeError if that fails."""
    made = directory / "override.so"
    command = _command(made)
    _library.logger.warning("compiling %s for torch %s, %s", _aten_build.SOURCES[0], torch.__version__, when)
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        errors = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()[-1:]
        raise RuntimeError(f"{command[0]} failed: {errors[0] if errors else run.returncode}")
    return made


def _compiled() -> ctypes.PyDLL:
    """Returns the library from the cache directory. RuntimeError if it cannot be compiled."""
    return _compiled_library.load("aten", _name(), _compile, ctypes.PyDLL, _PATIENCE)


_starting = _forks.lock()


@functools.cache
def _load() -> ctypes.PyDLL:
    """Loads the library, which changes nothing yet. OSError or RuntimeError if that is not possible."""
    shipped = _PACKAGE / f"{_aten_build.stem(torch.__version__)}.so"
    # PyDLL keeps Python's lock during calls: torch registers kernels of Python under it, too.
    return ctypes.PyDLL(str(shipped)) if shipped.is_file() else _compiled()


def allocate_function() -> int | None:
    """Returns the address of the function that allocates a tensor with torch's own errors, None if there is none."""
    try:
        return ctypes.cast(_load().hgemm_aten_allocate, ctypes.c_void_p).value
    except (OSError, RuntimeError) as error:
        _library.logger.warning("ops that run out of memory raise RuntimeError, not torch.OutOfMemoryError: %s", error)
        return None


@functools.cache
def reason() -> str | None:
    """Returns why the override does not run, or None if it does.

    The first call starts it, and logs a warning if it cannot be compiled or loaded. It does not ask the driver for a
    device, which would initialise CUDA. Threads that call it at the same time wait for one of them.
    """
    with _starting:
        return _try_to_start()


@functools.cache
def _try_to_start() -> str | None:
    if not _library.load():
        return f"no native library: {_library.reason()}"
    if why := _devices.no_cuda():
        return why
    if not _native.lib().hgemm_has_device_code():
        return "the library was built without device code (HGEMM_CUDA_ARCHS=none)"
    try:
        # torch 2.12 and newer register kernels from Python in this module. `import torch` imports it last, after the
        # entry points that may have called this function. The override must be registered after these kernels.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("torch._native")
        library = _load()
        library.hgemm_aten_hidden.restype = library.hgemm_aten_install.restype = ctypes.c_char_p
        library.hgemm_aten_install.argtypes = [ctypes.c_void_p]
        refusal = library.hgemm_aten_install(_native.lib().hgemm_gemm_api())
        if refusal is not None:
            raise RuntimeError(refusal.decode())
        _loaded.append(library)
    except (OSError, RuntimeError) as error:
        why = f"torch's matmuls cannot be overridden: {error}"
        _library.logger.warning("%s; torch runs every matmul", why)
        return why
    return None


def start() -> bool:
    """Registers the kernels of ``csrc/aten`` with torch, once. Returns False if that is not possible."""
    return reason() is None


def hidden() -> list[str]:
    """Returns the operators whose matmuls do not reach this package, because another one has overridden them.

    Each is a text such as "aten::mm, registered at /path/to/package.py:12". New ones are logged as a warning, once.
    """
    lines: list[str] = [line for library in _loaded for line in library.hgemm_aten_hidden().decode().splitlines()]
    if new := [line for line in lines if line not in _logged]:
        _logged.update(new)
        _library.logger.warning(
            "another package overrides these operators, so its kernels run there instead of ours: %s", "; ".join(new)
        )
    return lines
