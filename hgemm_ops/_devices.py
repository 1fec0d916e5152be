"""The GPUs of this machine, found out without initialising CUDA in this process.

A process that has initialised CUDA can no longer fork children that use it. So nothing in this package asks the driver
before a matmul on CUDA does: not importing it, not entering a context, not ``explain``.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import _library, _native

_PATIENCE = 60  # seconds; a driver that has to start many GPUs takes several


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process can use. ``fault`` says why the kernels of this package cannot run on it, or is ""."""

    ordinal: int
    name: str
    facts: _native.Facts
    fault: str


@functools.cache
def no_cuda() -> str:
    """Returns why this process can have no CUDA tensor, or "" if it may. It loads the driver's library at most, and
    does not call it."""
    if torch.version.cuda is None:
        return "no CUDA device: this torch was built without CUDA"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA device: the NVIDIA driver (libcuda.so.1) was not found"
    return ""


def may_exist() -> bool:
    """Whether this process may use a GPU: True as well if that cannot be found out. Needs no native library."""
    if no_cuda():
        return False
    if torch.cuda.is_initialized():
        return torch.cuda.device_count() > 0
    return _asked(*_environment()) != []


def visible() -> tuple[Gpu, ...]:
    """Returns the GPUs that this process can use, in the order of their ordinals.

    Once CUDA is initialised in this process, the answer comes from there. Before that it comes from a process of its
    own, which takes some tenths of a second, once; the result is empty if that process fails. RuntimeError if there is
    no native library.
    """
    if no_cuda():
        return ()
    if torch.cuda.is_initialized():
        return tuple(map(_own, range(torch.cuda.device_count())))
    return tuple(_probed(ordinal, **gpu) for ordinal, gpu in enumerate(_asked(*_environment()) or ()))


def current() -> Gpu | None:
    """Returns the GPU that a matmul would run on now; None where there is none, as far as :func:`visible` knows."""
    if torch.cuda.is_initialized():
        return _own(torch.cuda.current_device())
    return next(iter(visible()), None)


def _own(ordinal: int) -> Gpu:
    fault = _native.device_fault(ordinal)
    facts = _native.Facts() if fault else _native.device_facts(ordinal)
    return Gpu(ordinal, torch.cuda.get_device_name(ordinal), facts, fault)


def _probed(ordinal: int, name: str, facts: dict[str, int]) -> Gpu:
    # A library without device code gives its fault without asking the driver.
    has_code = _native.lib().hgemm_has_device_code()
    fault = _native.fault_of_arch(facts["cc"]) if has_code else _native.device_fault(ordinal)
    return Gpu(ordinal, name, _native.Facts(**facts), fault)


def _environment() -> tuple[str | None, ...]:
    """Returns the variables by which CUDA chooses and orders devices."""
    return tuple(map(os.environ.get, ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")))


@functools.cache
def _asked(*environment: str | None) -> list[dict[str, Any]] | None:
    """Runs ``_probe.py``, once for each ``environment``, and returns what it prints; None if it fails."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None  # an application that would not run the file as Python does
    try:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_probe.py"))]
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=True)
        found: list[dict[str, Any]] = json.loads(run.stdout)
        return found
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _library.logger.info("cannot list the GPUs before CUDA is initialised: %s", error)
        return None
