"""Tuning tables: measured times of each GPU, as files.

The package ships ``hgemm_ops/tables/*.json``. The user's own tables override them: first the shapes that ``tune=True``
timed at their first matmul, then the shapes that ``hgemm tune`` measured.

A file has the times of plain matmuls, without epilogue, on one GPU::

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

- ``device``: ``cc``, ``sm_count`` and ``l2_bytes`` decide whether a table applies to a GPU (an H100 has less L2 than an
  H200). The name is for people. ``dram_gbs`` is the bandwidth in GB/s that predictions at the table's shapes assume.
  Without it they assume that of the chip.
- ``measured``: the environment that the times were measured in. It is not interpreted.
- ``align``: the least alignment of A, B and the result in bytes, from 2 to 16.
- ``us``: microseconds by kernel. A key is the kernel's index in ``kernels``, or its name. Torch's time is required.
  Kernels that this build does not have are skipped.

A file may also have a list ``grouped``, with the times of grouped matmuls::

    {"dtype": "bfloat16", "divided": "rows", "layout": "NT", "groups": 128, "m": 4096, "n": 1536, "k": 2048,
     "us": {"torch": 276.0, "<variant>": 236.1}}

The groups divide ``rows``, ``k`` or ``columns``, of which m, n or k counts those of all groups together. The ends of
the groups that were timed are not a part of the entry.

A file or an entry that is not valid is skipped, with one line in the log.

For a shape in a table, the dispatcher takes the fastest measured kernel if it beats torch by 1 %. With an activation or
an added matrix the margin is 4 %, unless exactly one of m and n is at most 64. Where the model has learned nothing of
the GPU and dtype, measured neighbours correct its predictions: shapes within a factor of 1.5 in each of batch, m, n and
k.
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

from . import _files, _forks, _library, _native, _variants

SCHEMA = 1
_TUNED = "tuned"  # a directory in user_dir()
DIVIDED = ("rows", "k", "columns")  # what groups divide, by the value of the enum Divided
_DTYPES = {_native.dtype_name(dtype): index for index, dtype in enumerate(_native.TABLE_DTYPES)}
_MAJORS = {layout: majors for majors, layout in _native.LAYOUTS.items()}


@dataclass(frozen=True)
class Device:
    """A GPU, as tables identify it.

    ``dram_gbs`` is the peak bandwidth of its memory in GB/s; 0 means unknown.
    """

    name: str
    cc: int
    sm_count: int
    l2_bytes: int
    dram_gbs: int = field(default=0, compare=False)

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "_")


def device_of(ordinal: int = 0) -> Device:
    """Returns the description of a GPU of this machine."""
    facts = _native.device_facts(ordinal)
    name = torch.cuda.get_device_name(ordinal)
    return Device(name=name, cc=facts.cc, sm_count=facts.sm_count, l2_bytes=facts.l2_bytes, dram_gbs=facts.dram_gbs)


@dataclass(frozen=True)
class Entry:
    """The times of one shape: ``us`` maps the names of kernels, and "torch", to microseconds."""

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
        """Returns the entry in a file's ``data``, or None if it is not valid."""
        try:
            us = {kernels[int(name)] if name.isdecimal() else name: value for name, value in data["us"].items()}
            entry = cls(**{**data, "us": us})
            known = entry.dtype in _DTYPES and entry.layout in _MAJORS and "torch" in entry.us
            times = all(type(us) in (int, float) and 1e-3 <= us <= 1e9 for us in entry.us.values())
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
        sizes = _whole(entry.batch, entry.m, entry.n, entry.k)
        return entry if known and times and sizes and _whole(entry.align) and entry.align in (2, 4, 8, 16) else None


@dataclass(frozen=True)
class GroupedEntry:
    """The times of grouped matmuls of one size. ``us`` maps the names of grouped kernels, and "torch"."""

    dtype: str
    divided: str
    layout: str
    groups: int
    m: int
    n: int
    k: int
    us: dict[str, float] = field(hash=False)

    @property
    def shape(self) -> tuple[str, str, str, int, int, int, int]:
        return self.dtype, self.divided, self.layout, self.groups, self.m, self.n, self.k

    @property
    def label(self) -> str:
        return f"{self.m}x{self.n}x{self.k} in {self.groups} groups of {self.divided}"

    @classmethod
    def parse(cls, data: Any) -> GroupedEntry | None:
        """Returns the entry in a file's ``data``, or None if it is not valid."""
        try:
            entry = cls(**data)
            known = entry.dtype in _DTYPES and entry.layout in _MAJORS and entry.divided in DIVIDED
            known = known and "torch" in entry.us and all(isinstance(name, str) for name in entry.us)
            times = all(type(us) in (int, float) and 1e-3 <= us <= 1e9 for us in entry.us.values())
        except (AttributeError, TypeError):
            return None
        return entry if known and times and _whole(entry.groups, entry.m, entry.n, entry.k) else None


def _whole(*values: Any) -> bool:
    """Whether all values are positive integers of 32 bits."""
    return all(type(value) is int and 0 < value < 1 << 31 for value in values)


@dataclass
class Table:
    """The content of a file. ``skipped`` describes the entries that were not valid, "" if all were."""

    device: Device
    entries: list[Entry]
    measured: dict[str, Any] = field(default_factory=dict)
    grouped: list[GroupedEntry] = field(default_factory=list)
    skipped: str = field(default="", compare=False)

    @classmethod
    def read(cls, path: Path) -> Table:
        """Reads a file. ValueError, with the file's name, if it is not a table."""
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}, but this version reads schema {SCHEMA}")
            kernels = data.get("kernels", [])
            if not (isinstance(kernels, list) and all(isinstance(name, str) for name in kernels)):
                raise ValueError("kernels must be a list of names")
            device, entries = Device(**data["device"]), [Entry.parse(entry, kernels) for entry in data["entries"]]
            sizes = _whole(device.cc, device.sm_count, device.l2_bytes, device.dram_gbs or 1)
            if not (isinstance(device.name, str) and sizes):
                raise ValueError(f"impossible device: {device}")
            grouped = [GroupedEntry.parse(entry) for entry in data.get("grouped", [])]
            known, known_grouped = ([entry for entry in of if entry] for of in (entries, grouped))
            table = cls(device, known, data["measured"], known_grouped)  # type: ignore[arg-type]
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a tuning table: {error}") from error
        for what, of in (("grouped matmuls", grouped), ("entries", entries)):
            if None in of:
                bad = f"{of.count(None)} of {len(of)} {what} are not valid, the first is number"
                table.skipped = f"{path}: {bad} {of.index(None) + 1}; they are skipped"
        return table


def of_device(path: Path, device: Device) -> Table:
    """Returns the table in ``path``, or an empty one if there is no file.

    ValueError if the file is not a table, or is the table of another GPU.
    """
    table = Table.read(path) if path.exists() else Table(device, [])
    if replace(table.device, name=device.name) != device:
        raise ValueError(f"{path} is the tuning table of another GPU, {table.device.name}: this is {device.name}")
    return table


def write(table: Table, path: Path) -> None:
    """Replaces the file ``path`` by a table. Only one process may write it at a time.

    Each entry is one line, so that a change of one shape is one line of a diff.
    """
    names = dict.fromkeys(name for entry in table.entries for name in entry.us)
    places = {name: str(index) for index, name in enumerate(names)}

    def line(entry: Entry) -> str:
        return json.dumps({**asdict(entry), "us": {places[name]: us for name, us in entry.us.items()}})

    head = {"schema": SCHEMA, "device": asdict(table.device), "measured": table.measured, "kernels": list(places)}
    lines = ",\n".join("    " + line(entry) for entry in table.entries)
    entries = f'  "entries": [\n{lines}\n  ]' if lines else '  "entries": []'
    if table.grouped:
        entries += ',\n  "grouped": [\n' + ",\n".join(f"    {json.dumps(asdict(e))}" for e in table.grouped) + "\n  ]"
    _files.replace(path, json.dumps(head, indent=2).removesuffix("\n}") + f",\n{entries}\n}}\n")


@contextmanager
def updating(path: Path, device: Device, patience: float = math.inf) -> Iterator[Table]:
    """Yields the table in ``path``, and writes it when the block ends.

    The block may change the table. A lock keeps other processes from updating the file meanwhile. TimeoutError if
    another process still holds the lock after ``patience`` seconds; ValueError as for ``of_device``.
    """
    with _files.locked(path, patience):
        table = of_device(path, device)
        yield table
        write(table, path)


def shipped_dir() -> Path:
    return Path(__file__).with_name("tables")


def user_dir() -> Path:
    """The directory that ``hgemm tune`` writes to."""
    return _library.cache_dir() / "tables"


@functools.cache
def driver() -> str:
    """Returns the driver's version as nvidia-smi prints it, or "" if it cannot be found out."""
    try:
        nvml, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
        if nvml.nvmlInitWithFlags(2) == 0:  # NVML_INIT_FLAG_NO_ATTACH: does not attach to the GPUs
            nvml.nvmlSystemGetDriverVersion(version, len(version))
            nvml.nvmlShutdown()
    except (AttributeError, OSError):
        return ""
    return version.value.decode()


def environment() -> dict[str, str]:
    """Returns the versions that times depend on, in addition to the GPU."""
    from . import __version__

    return {
        "driver": driver(),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "hgemm_ops": __version__,
    }


def tuned_dir() -> Path:
    """The directory of the shapes that ``tune=True`` timed in this environment.

    Other versions have directories of their own, and time the shapes again.
    """
    return user_dir() / _TUNED / "_".join(f"{name}-{value}" for name, value in environment().items())


def tuned_file(device: Device) -> Path:
    """The file of the shapes that ``tune=True`` timed on a GPU."""
    return tuned_dir() / f"{device.slug}-{device.sm_count}-{device.l2_bytes}.json"


def _ever_tuned() -> bool:
    """Whether ``tune=True`` has ever stored a time; False also if the directory cannot be read.

    If it has not, there is no need to ask for the driver's version.
    """
    try:
        return (user_dir() / _TUNED).is_dir()
    except (OSError, RuntimeError):
        return False


def files(broken: list[str] | None = None) -> Iterator[Path]:
    """Yields the path of every table. The shapes of a later file override those of an earlier one.

    ``broken``, if given, receives a line for each directory that cannot be read.
    """

    def tables_in(directory: Callable[[], Path]) -> list[Path]:
        try:
            return sorted(path for path in directory().iterdir() if path.suffix == ".json" and path.is_file())
        except FileNotFoundError:
            return []
        except (OSError, RuntimeError) as error:  # RuntimeError if there is no home directory
            if broken is not None:
                broken.append(f"tables: {error}")
            return []

    shipped, own = tables_in(shipped_dir), tables_in(user_dir)
    yield from (*shipped, *(tables_in(tuned_dir) if _ever_tuned() else ()), *own)


def _key(device: Device, entry: Entry) -> tuple[int, ...]:
    """Returns the values by which the dispatcher looks an entry up."""
    dtype, layout, *sizes = entry.shape
    return (device.cc, device.sm_count, device.l2_bytes, _DTYPES[dtype], *_MAJORS[layout], *sizes)


def _timings(us: dict[str, float]) -> list[_native.Timing]:
    """Returns the times of the kernels that this build has."""
    ids = _variants.ids()
    return [_native.Timing(ids[name], 0, value) for name, value in us.items() if name in ids]


_lock = _forks.lock()  # while the library's tables change, for which it has locks of its own


def _add_grouped(device: Device, entry: GroupedEntry) -> None:
    words = (_DTYPES[entry.dtype], DIVIDED.index(entry.divided), *_MAJORS[entry.layout])
    key = (device.cc, device.sm_count, device.l2_bytes, *words, entry.groups, entry.m, entry.n, entry.k)
    ids = {"torch": _native.TORCH} | {name: index for index, name in enumerate(_native.grouped_names())}
    timings = [_native.Timing(ids[name], 0, us) for name, us in entry.us.items() if name in ids]
    with _lock:
        _native.add_grouped_times(key, timings)


def keep_grouped(device: Device, entry: GroupedEntry) -> None:
    """Adds the times of a grouped matmul for as long as this process lives."""
    _add_grouped(device, entry)
    _kept_grouped.setdefault(device, []).append(entry)


#: The same for grouped matmuls.
_kept_grouped: dict[Device, list[GroupedEntry]] = {}
#: The entries that this process measured. They may not be in any file.
_kept: dict[Device, list[Entry]] = {}


def keep(device: Device, entry: Entry) -> None:
    """Adds an entry to the dispatcher's table for as long as this process lives.

    RuntimeError if no matmul can have such an entry.
    """
    timings = _timings(entry.us)
    with _lock:
        _native.add_to_table(_native.TableEntry(*_key(device, entry), 0, len(timings), device.dram_gbs), timings)
    _kept.setdefault(device, []).append(entry)


def install(tables: list[Table]) -> int:
    """Replaces the dispatcher's table by these. Returns the number of shapes."""
    shapes = {_key(t.device, entry): (entry.us, t.device.dram_gbs) for t in tables for entry in t.entries}
    entries: list[_native.TableEntry] = []
    timings: list[_native.Timing] = []
    for key, (us, dram_gbs) in shapes.items():
        known = _timings(us)
        entries.append(_native.TableEntry(*key, len(timings), len(known), dram_gbs))
        timings += known
    with _lock:
        refused = _native.set_table(entries, timings)
        _native.lib().hgemm_grouped_times_clear()
    if refused:
        _library.logger.warning("tables: %s", refused)
    for t in tables:
        for product in t.grouped:
            _add_grouped(t.device, product)
    return len(entries)


def read_all() -> tuple[list[Table], list[str]]:
    """Returns every table that can be read, and a line for each file and for each table with parts that cannot."""
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
    """Reads every table again, for example after tuning. Returns the number of shapes.

    What cannot be read is logged and skipped.
    """
    tables, broken = read_all()
    for line in broken:
        _library.logger.warning("%s", line)
    kept = [Table(device, list(entries)) for device, entries in list(_kept.items())]
    kept += [Table(device, [], grouped=list(entries)) for device, entries in list(_kept_grouped.items())]
    return install([*kept, *tables])


@functools.cache
def ensure() -> None:
    """Loads the tables once. The first decision calls it, so that importing the package costs no time for it."""
    reload()
