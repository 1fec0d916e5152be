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
not interpreted. Where a shape is in a table, the fastest measured kernel is taken if it beats torch by 1 %; where
neighbours are (within 1.5x in batch, m, n and k), they correct the model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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


@dataclass
class Table:
    device: Device
    entries: list[Entry]
    measured: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Table:
        """ValueError, naming the file, where it is not a table."""
        try:
            data = json.loads(path.read_text())
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
            table = cls(Device(**data["device"]), [Entry(**entry) for entry in data["entries"]], data["measured"])
            for entry in table.entries:
                if entry.dtype not in _DTYPES or entry.layout not in _MAJORS or "torch" not in entry.us:
                    raise ValueError(f"entry {asdict(entry)} has an unknown dtype or layout, or no time for torch")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a table: {error}") from error
        return table

    def write(self, path: Path) -> None:
        """Writes one entry a line, so that a change of one shape is one line of a diff."""
        head = {"schema": SCHEMA, "device": asdict(self.device), "measured": self.measured}
        lines = ",\n".join("    " + json.dumps(asdict(entry)) for entry in self.entries)
        body = (
            json.dumps(head, indent=2).removesuffix("\n}") + ',\n  "entries": [' + (f"\n{lines}\n  " if lines else "")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body + "]\n}\n")


def shipped_dir() -> Path:
    return Path(__file__).with_name("tables")


def user_dir() -> Path:
    """Where ``hgemm tune`` writes."""
    return _library.cache_dir() / "tables"


def files() -> Iterator[Path]:
    """Every table there is; a later file overrides an earlier one's shapes."""
    for directory in (shipped_dir(), user_dir()):
        yield from sorted(directory.glob("*.json"))


def install(tables: list[Table]) -> int:
    """Gives the dispatcher these tables instead of what it has; returns the number of shapes."""
    shapes = {
        (table.device.cc, table.device.sm_count, table.device.l2_bytes, *entry.shape): (table.device, entry)
        for table in tables
        for entry in table.entries
    }
    ids = {"torch": _native.TORCH, **{name: id_ for id_, name in enumerate(_variants.names())}}
    entries: list[_native.TableEntry] = []
    timings: list[_native.Timing] = []
    for device, entry in shapes.values():
        known = [_native.Timing(ids[name], 0, us) for name, us in entry.us.items() if name in ids]
        a_major, b_major = _MAJORS[entry.layout]
        entries.append(
            _native.TableEntry(
                device.cc,
                device.sm_count,
                device.l2_bytes,
                _DTYPES[entry.dtype],
                a_major,
                b_major,
                entry.align,
                entry.batch,
                entry.m,
                entry.n,
                entry.k,
                len(timings),
                len(known),
            )
        )
        timings += known
    _native.set_table(entries, timings)
    return len(entries)


def read_all() -> tuple[list[Table], list[str]]:
    """Every table that can be read, and what is wrong with the others."""
    tables, broken = [], []
    for path in files():
        try:
            tables.append(Table.read(path))
        except (OSError, ValueError) as error:
            broken.append(str(error))
    return tables, broken


def reload() -> int:
    """Reads every table again, after tuning; returns the number of shapes. A broken file is reported and skipped."""
    tables, broken = read_all()
    for line in broken:
        _library.logger.warning("%s", line)
    return install(tables)


@functools.cache
def ensure() -> None:
    """Loads the tables once: with the first decision, so that importing the package does not pay for it."""
    reload()
