"""Starts the override of torch's matmuls (``csrc/aten``): finds the library for this torch, or compiles it once."""

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from hgemm_ops import _aten_build, _devices, _library, _native

_PACKAGE = Path(__file__).parent


def _compile() -> Path:
    """Returns the library in the cache directory, and compiles it if it is not there. RuntimeError if that fails."""
    installed, checkout = _PACKAGE / "_csrc", _PACKAGE.parent / "csrc"
    csrc, torch_root = installed if installed.is_dir() else checkout, Path(torch.__file__).parent
    missing = [name for name in _aten_build.SOURCES if not (csrc / name).is_file()]
    if missing:
        raise RuntimeError(f"{csrc / missing[0]} is missing")
    cxx = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(cxx[0]) is None:
        raise RuntimeError(f"there is no C++ compiler {cxx[0]!r} (CXX)")
    text = b"".join((csrc / name).read_bytes() for name in _aten_build.SOURCES)
    digest = hashlib.sha256(text + torch.__version__.encode()).hexdigest()[:16]
    library = _library.cache_dir() / "aten" / f"{_aten_build.stem(torch.__version__)}-{digest}.so"
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    _library.logger.warning("compiling %s for torch %s, once", _aten_build.SOURCES[0], torch.__version__)
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        made = Path(directory) / "override.so"
        run = subprocess.run(_aten_build.command(cxx, csrc, torch_root, made), capture_output=True, text=True)
        if run.returncode:
            errors = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()[-1:]
            raise RuntimeError(f"{cxx[0]} failed: {errors[0] if errors else run.returncode}")
        made.replace(library)  # atomic: several processes may compile it at once
    return library


@functools.cache
def reason() -> str | None:
    """Returns why the override does not run, or None if it does.

    The first call starts it, and logs a warning if it cannot be compiled or loaded. It does not ask the driver for a
    device, which would initialise CUDA.
    """
    if not _library.load():
        return f"no native library: {_library.reason()}"
    if why := _devices.no_cuda():
        return why
    if not _native.lib().hgemm_has_device_code():
        return "the library was built without device code (HGEMM_CUDA_ARCHS=none)"
    try:
        shipped = _PACKAGE / f"{_aten_build.stem(torch.__version__)}.so"
        library = ctypes.CDLL(str(shipped if shipped.is_file() else _compile()))
        library.hgemm_aten_install.restype = ctypes.c_char_p
        library.hgemm_aten_install.argtypes = [ctypes.c_void_p]
        refusal = library.hgemm_aten_install(_native.lib().hgemm_gemm_api())
        if refusal is not None:
            raise RuntimeError(refusal.decode())
    except (OSError, RuntimeError) as error:
        why = f"the override of torch's products does not start: {error}"
        _library.logger.warning("%s; torch serves every product", why)
        return why
    return None


def start() -> bool:
    """Registers the kernels of ``csrc/aten`` with torch, once. Returns False if that is not possible."""
    return reason() is None
