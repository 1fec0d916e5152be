"""Measured times per GPU as data: ``hgemm_ops/tables/*.json``, and on top of them the user's own from ``hgemm tune``.

A file holds the times of plain products on one GPU::

    {
      "schema": 1,
      "device": {"name": "NVIDIA H200", "cc": 90, "sm_count": 132, "l2_bytes": 62914560},
      "measured": {"torch": "…", "driver": "…", "commit": "…", "csrc": "…"},
      "entries": [
        {"dtype": "float16", "layout": "NT", "align": 16, "batch": 1, "m": 16, "n": 4096, "k": 4096,
         "us": {"torch": 13.9, "<variant>": 12.1}}
      ]
    }

``cc``, ``sm_count`` and ``l2_bytes`` decide whether a GPU is meant (an H100 has less L2 than an H200); the name is for
people. ``align`` is the least alignment of A, B and the result in bytes, 2 to 16. ``us`` maps kernels to microseconds
and must hold torch's; a kernel this build does not have is skipped. ``measured`` says where numbers come from and is
not interpreted. What is not valid, an entry or a file, is skipped, with one line in the log. Where a shape is in a
table, the fastest measured kernel is taken if it beats torch by 1 %; where neighbours are (within 1.5x in batch, m, n
and k), they correct the model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hgemm_ops import _library, _native, _variants

SCHEMA = 1
_DTYPES = {str(dtype).removeprefix("torch."): index for index, dtype in enumerate(_native.KERNEL_DTYPES)}
_MAJORS = {layout: majors for majors, layout in _native.LAYOUTS.items()}


@dataclass(frozen=True)
class Device:
    name: str
    cc: int
    sm_count: int
    l2_bytes: int

    @classmethod
    def current(cls, ordinal: int = 0) -> Device:
        """The device with this ordinal."""
        facts = _native.device_facts(ordinal)
        return cls(torch.cuda.get_device_name(ordinal), facts.cc, facts.sm_count, facts.l2_bytes)

    @property
    def slug(self) -> str:
        return self.name.lower().replace(" ", "_")


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
    def parse(cls, data: Any) -> Entry | None:
        """None where a file's ``data`` is not a measured product."""
        try:
            entry = cls(**data)
            known = entry.dtype in _DTYPES and entry.layout in _MAJORS and "torch" in entry.us
            times = all(type(us) in (int, float) and 1e-3 <= us <= 1e9 for us in entry.us.values())
        except (AttributeError, TypeError):
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
            device, entries = Device(**data["device"]), [Entry.parse(entry) for entry in data["entries"]]
            if not (isinstance(device.name, str) and _whole(device.cc, device.sm_count, device.l2_bytes)):
                raise ValueError(f"there is no such device: {device}")
            table = cls(device, [entry for entry in entries if entry], data["measured"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a table: {error}") from error
        if None in entries:
            bad = f"{entries.count(None)} of {len(entries)} entries are not valid, the first is number"
            table.skipped = f"{path}: {bad} {entries.index(None) + 1}: skipped"
        return table


def shipped_dir() -> Path:
    return Path(__file__).with_name("tables")


def user_dir() -> Path:
    """Where ``hgemm tune`` writes."""
    return _library.cache_dir() / "tables"


def files(broken: list[str] | None = None) -> Iterator[Path]:
    """Every table there is; a later file overrides an earlier one's shapes. ``broken`` receives why one cannot look."""
    for directory in (shipped_dir, user_dir):
        try:
            yield from sorted(path for path in directory().iterdir() if path.suffix == ".json" and path.is_file())
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as error:  # the latter where there is no home directory
            if broken is not None:
                broken.append(f"tables: {error}")


def install(tables: list[Table]) -> int:
    """Gives the dispatcher these tables instead of what it has; returns the number of shapes."""
    shapes = {
        (table.device.cc, table.device.sm_count, table.device.l2_bytes, *entry.shape): entry.us
        for table in tables
        for entry in table.entries
    }
    ids = {"torch": _native.TORCH, **{name: id_ for id_, name in enumerate(_variants.names())}}
    entries: list[_native.TableEntry] = []
    timings: list[_native.Timing] = []
    for (cc, sm_count, l2_bytes, dtype, layout, *sizes), times in shapes.items():
        known = [_native.Timing(ids[name], 0, us) for name, us in times.items() if name in ids]
        kind = (cc, sm_count, l2_bytes, _DTYPES[dtype], *_MAJORS[layout])
        entries.append(_native.TableEntry(*kind, *sizes, len(timings), len(known)))
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
    return install(tables)


@functools.cache
def ensure() -> None:
    """Loads the tables once: with the first decision, so that importing the package does not pay for it."""
    reload()
