"""Measured times per GPU as data: ``hgemm_ops/tables/*.json``, and on top of them the user's own: what was timed as it
came (``tune=True``), and what ``hgemm tune`` measured.

A file holds the times of plain products on one GPU::

    {
      "schema": 1,
      "device": {"name": "NVIDIA H200", "cc": 90, "sm_count": 132, "l2_bytes": 62914560,
                 "dram_gbs": 4916},
      "measured": {"torch": "…", "driver": "…", "commit": "…", "csrc": "…"},
      "kernels": ["torch", "<variant>"],
      "entries": [
        {"dtype": "float16", "layout": "NT", "align": 16, "batch": 1, "m": 16, "n": 4096, "k": 4096,
         "us": {"0": 13.9, "1": 12.1}}
      ]
    }

``cc``, ``sm_count`` and ``l2_bytes`` decide whether a GPU is meant (an H100 has less L2 than an H200); the name is for
people. Predictions at a table's shapes take the memory for one of ``dram_gbs`` GB/s, where the file says so, and else
for the chip's. ``align`` is the least alignment of A, B and the result in bytes, 2 to 16. ``us`` maps kernels, by
their place in ``kernels`` or by name, to microseconds and must hold torch's; a kernel this build does not have is
skipped.
``measured`` says where numbers come from and is not interpreted. What is not valid, an entry or a file, is skipped,
with one line in the log. Where a shape is in a table, the fastest measured kernel is taken if it beats torch by 1 %;
where neighbours are (within 1.5x in batch, m, n and k), they correct the model.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hgemm_ops import _files, _library, _native, _variants

SCHEMA = 1
_TUNED = "tuned"  # in the user's directory
_DTYPES = {_native.dtype_name(dtype): index for index, dtype in enumerate(_native.KERNEL_DTYPES)}
_MAJORS = {layout: majors for majors, layout in _native.LAYOUTS.items()}


@dataclass(frozen=True)
class Device:
    name: str
    cc: int
    sm_count: int
    l2_bytes: int
    dram_gbs: int = field(default=0, compare=False)  # of its memory at most; 0: not known

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "_")


def device_of(ordinal: int = 0) -> Device:
    """A GPU of this machine, as tables name it."""
    facts = _native.device_facts(ordinal)
    name = torch.cuda.get_device_name(ordinal)
    return Device(name=name, cc=facts.cc, sm_count=facts.sm_count, l2_bytes=facts.l2_bytes, dram_gbs=facts.dram_gbs)


@dataclass(frozen=True)
class Entry:
    dtype: str
    layout: str
    align: int
    batch: int
    m: int
    n: int
    k: int
    us: dict[str, float] = field(hash=False)

    @property
    def shape(self) -> tuple[str, str, int, int, int, int, int]:
        return self.dtype, self.layout, self.align, self.batch, self.m, self.n, self.k

    @classmethod
    def parse(cls, data: Any, kernels: Sequence[str]) -> Entry | None:
        """None where a file's ``data`` is not a measured product."""
        try:
            us = {kernels[int(name)] if name.isdecimal() else name: value for name, value in data["us"].items()}
            entry = cls(**{**data, "us": us})
            known = entry.dtype in _DTYPES and entry.layout in _MAJORS and "torch" in entry.us
            times = all(type(us) in (int, float) and 1e-3 <= us <= 1e9 for us in entry.us.values())
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
        sizes = _whole(entry.batch, entry.m, entry.n, entry.k)
        return entry if known and times and sizes and _whole(entry.align) and entry.align in (2, 4, 8, 16) else None


def _whole(*values: Any) -> bool:
    """Whether these are positive integers of 32 bits."""
    return all(type(value) is int and 0 < value < 1 << 31 for value in values)


@dataclass
class Table:
    """``skipped``: what of the file was not valid, "" for nothing."""

    device: Device
    entries: list[Entry]
    measured: dict[str, Any] = field(default_factory=dict)
    skipped: str = field(default="", compare=False)

    @classmethod
    def read(cls, path: Path) -> Table:
        """ValueError, naming the file, where it is not a table."""
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
            kernels = data.get("kernels", [])
            if not (isinstance(kernels, list) and all(isinstance(name, str) for name in kernels)):
                raise ValueError("kernels must be a list of names")
            device, entries = Device(**data["device"]), [Entry.parse(entry, kernels) for entry in data["entries"]]
            sizes = _whole(device.cc, device.sm_count, device.l2_bytes, device.dram_gbs or 1)
            if not (isinstance(device.name, str) and sizes):
                raise ValueError(f"there is no such device: {device}")
            table = cls(device, [entry for entry in entries if entry], data["measured"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a table: {error}") from error
        if None in entries:
            bad = f"{entries.count(None)} of {len(entries)} entries are not valid, the first is number"
            table.skipped = f"{path}: {bad} {entries.index(None) + 1}: skipped"
        return table


def of_device(path: Path, device: Device) -> Table:
    """The table in ``path``, an empty one where there is none. ValueError where it is broken, or another GPU's."""
    table = Table.read(path) if path.exists() else Table(device, [])
    if replace(table.device, name=device.name) != device:
        raise ValueError(f"{path} is the table of another GPU, {table.device.name}: this is {device.name}")
    return table


def write(table: Table, path: Path) -> None:
    """Puts a table in the place of ``path``, for one process at a time. One entry a line, so that a change of one shape
    is one line of a diff."""
    names = dict.fromkeys(name for entry in table.entries for name in entry.us)
    places = {name: str(index) for index, name in enumerate(names)}

    def line(entry: Entry) -> str:
        return json.dumps({**asdict(entry), "us": {places[name]: us for name, us in entry.us.items()}})

    head = {"schema": SCHEMA, "device": asdict(table.device), "measured": table.measured, "kernels": list(places)}
    lines = ",\n".join("    " + line(entry) for entry in table.entries)
    entries = f'  "entries": [\n{lines}\n  ]' if lines else '  "entries": []'
    _files.replace(path, json.dumps(head, indent=2).removesuffix("\n}") + f",\n{entries}\n}}\n")


@contextmanager
def updating(path: Path, device: Device, patience: float = math.inf) -> Iterator[Table]:
    """The table in ``path``, to be changed in the block, behind which it is written; other processes wait, and this one
    for them, ``patience`` seconds at most (TimeoutError). ValueError as of ``of_device``."""
    with _files.locked(path, patience):
        table = of_device(path, device)
        yield table
        write(table, path)


def shipped_dir() -> Path:
    return Path(__file__).with_name("tables")


def user_dir() -> Path:
    """Where ``hgemm tune`` writes."""
    return _library.cache_dir() / "tables"


@functools.cache
def driver() -> str:
    """The driver's version as nvidia-smi prints it, "" where nothing says so."""
    try:
        nvml, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
        if nvml.nvmlInitWithFlags(2) == 0:  # NVML_INIT_FLAG_NO_ATTACH: the GPUs are not asked for
            nvml.nvmlSystemGetDriverVersion(version, len(version))
            nvml.nvmlShutdown()
    except (AttributeError, OSError):
        return ""
    return version.value.decode()


def environment() -> dict[str, str]:
    """What times depend on beside the GPU."""
    from hgemm_ops import __version__

    return {
        "driver": driver(),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "hgemm_ops": __version__,
    }


def tuned_dir() -> Path:
    """Where the shapes are kept that were timed as they came, in this environment: in another they are timed again."""
    return user_dir() / _TUNED / "_".join(f"{name}-{value}" for name, value in environment().items())


def tuned_file(device: Device) -> Path:
    return tuned_dir() / f"{device.slug}-{device.sm_count}-{device.l2_bytes}.json"


def _ever_tuned() -> bool:
    """Where not, the driver's version need not be asked for. False, too, where one cannot look."""
    try:
        return (user_dir() / _TUNED).is_dir()
    except (OSError, RuntimeError):
        return False


def files(broken: list[str] | None = None) -> Iterator[Path]:
    """Every table there is; a later file overrides an earlier one's shapes. ``broken`` receives why one cannot look."""

    def tables_in(directory: Callable[[], Path]) -> list[Path]:
        try:
            return sorted(path for path in directory().iterdir() if path.suffix == ".json" and path.is_file())
        except FileNotFoundError:
            return []
        except (OSError, RuntimeError) as error:  # the latter where there is no home directory
            if broken is not None:
                broken.append(f"tables: {error}")
            return []

    shipped, own = tables_in(shipped_dir), tables_in(user_dir)
    yield from (*shipped, *(tables_in(tuned_dir) if _ever_tuned() else ()), *own)


def _key(device: Device, entry: Entry) -> tuple[int, ...]:
    """What the dispatcher looks an entry up by."""
    dtype, layout, *sizes = entry.shape
    return (device.cc, device.sm_count, device.l2_bytes, _DTYPES[dtype], *_MAJORS[layout], *sizes)


def _timings(us: dict[str, float]) -> list[_native.Timing]:
    """Of the kernels that this build has."""
    ids = _variants.ids()
    return [_native.Timing(ids[name], 0, value) for name, value in us.items() if name in ids]


#: Entries that this process measured. A file may not hold them.
_kept: dict[Device, list[Entry]] = {}


def keep(device: Device, entry: Entry) -> None:
    """Adds an entry to what the dispatcher has. RuntimeError where no product can have such times."""
    timings = _timings(entry.us)
    _native.add_to_table(_native.TableEntry(*_key(device, entry), 0, len(timings), device.dram_gbs), timings)
    _kept.setdefault(device, []).append(entry)


def install(tables: list[Table]) -> int:
    """Gives the dispatcher these tables instead of what it has; returns the number of shapes."""
    shapes = {_key(t.device, entry): (entry.us, t.device.dram_gbs) for t in tables for entry in t.entries}
    entries: list[_native.TableEntry] = []
    timings: list[_native.Timing] = []
    for key, (us, dram_gbs) in shapes.items():
        known = _timings(us)
        entries.append(_native.TableEntry(*key, len(timings), len(known), dram_gbs))
        timings += known
    refused = _native.set_table(entries, timings)
    if refused:
        _library.logger.warning("tables: %s", refused)
    return len(entries)


def read_all() -> tuple[list[Table], list[str]]:
    """Every table that can be read, and a line for what is wrong with the others or with parts of these."""
    tables: list[Table] = []
    broken: list[str] = []
    for path in files(broken):
        try:
            tables.append(Table.read(path))
            broken += filter(None, [tables[-1].skipped])
        except (OSError, ValueError) as error:
            broken.append(str(error))
    return tables, broken


def reload() -> int:
    """Reads every table again, after tuning; returns the number of shapes. What is broken is reported and skipped."""
    tables, broken = read_all()
    for line in broken:
        _library.logger.warning("%s", line)
    kept = [Table(device, list(entries)) for device, entries in list(_kept.items())]
    return install([*kept, *tables])


@functools.cache
def ensure() -> None:
    """Loads the tables once: with the first decision, so that importing the package does not pay for it."""
    reload()
