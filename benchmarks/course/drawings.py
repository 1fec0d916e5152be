"""Draws what the steps of the course change in how data moves, as SVG: ``python -m benchmarks.course.drawings``.

One function for each drawing, in the order of benchmarks/ladder.md, which shows them. They need no package.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

DIRECTORY = Path(__file__).resolve().parent.parent / "drawings"

_A, _B, _C = "#cfe0f5", "#f7dcc4", "#cfe8d5"  # the fill of what belongs to A, B and C
_DEEP = {_A: "#2f5fb8", _B: "#b86a1f", _C: "#2b7a4b"}
_INK, _GREY = "#222222", "#8a8f98"
#: Eight colours for eight groups of four banks.
_GROUPS = ("#b8432f", "#c9812b", "#b5a12c", "#5f9a3c", "#2b7a6b", "#2f5fb8", "#6a3d9a", "#a33d77")


class Drawing:
    """An SVG that is built up element by element. Coordinates are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        tip = 'id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            f'<defs><marker {tip}><path d="M0 0 8 4 0 8z" fill="{_INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="6" fill="white"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str = "none", stroke: str = _GREY) -> None:
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{stroke}"/>')

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", fill: str = _INK, size: int = 12) -> None:
        style = f'text-anchor="{anchor}" fill="{fill}" font-size="{size}"'
        self._parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>')

    def label(self, x: float, y: float, w: float, h: float, text: str, fill: str) -> None:
        """A filled box with a text in its middle."""
        self.box(x, y, w, h, fill, _DEEP.get(fill, _GREY))
        self.text(x + w / 2, y + h / 2 + 4, text, anchor="middle")

    def arrow(self, *points: tuple[float, float], tip: bool = True, width: float = 1) -> None:
        path, end = " ".join(f"{x:g},{y:g}" for x, y in points), ' marker-end="url(#tip)"' * tip
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{_INK}" stroke-width="{width:g}"{end}/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def tiles() -> str:
    """A block tile, a thread tile, and the slices of A and B that they read."""
    d = Drawing(
        760, 300, "A block tile of C reads a strip of A and of B; a thread tile reads a column and a row of them"
    )
    d.text(20, 24, "global memory: a block owns a tile of C")
    d.box(60, 130, 80, 120, _A)  # A
    d.box(150, 40, 120, 80, _B)  # B
    d.box(150, 130, 120, 120, "white")  # C
    d.box(60, 170, 80, 40, "none", _DEEP[_A])
    d.box(190, 40, 40, 80, "none", _DEEP[_B])
    d.box(190, 170, 40, 40, _C, _DEEP[_C])
    d.box(90, 170, 14, 40, _DEEP[_A], _DEEP[_A])
    d.box(190, 70, 40, 14, _DEEP[_B], _DEEP[_B])
    for x, y, name in ((46, 195, "A"), (278, 84, "B"), (278, 195, "C")):
        d.text(x, y, name, anchor="middle" if name == "A" else "start")
    d.text(60, 270, "dark: the slice of K that is in")
    d.text(60, 285, "shared memory now")
    d.arrow((300, 150), (350, 150))
    d.text(360, 24, "shared memory: a slice of each")
    d.box(360, 140, 30, 110, _A, _DEEP[_A])
    d.box(400, 90, 110, 40, _B, _DEEP[_B])
    d.box(400, 140, 110, 110, _C, _DEEP[_C])
    d.box(360, 168, 30, 28, _DEEP[_A], _DEEP[_A])
    d.box(428, 90, 28, 40, _DEEP[_B], _DEEP[_B])
    d.box(428, 168, 28, 28, "white", _DEEP[_C])
    d.text(360, 270, "a row or a column of threads")
    d.text(360, 285, "reads each element")
    d.arrow((525, 182), (570, 182))
    d.text(580, 24, "registers: a thread's tile")
    for i in range(8):
        d.box(580, 108 + 14 * i, 12, 12, _A, _DEEP[_A])
        d.box(598 + 14 * i, 90, 12, 12, _B, _DEEP[_B])
        for j in range(8):
            d.box(598 + 14 * j, 108 + 14 * i, 12, 12, _C, _DEEP[_C])
    d.text(580, 245, "8 + 8 words feed 64 FMAs;")
    d.text(580, 260, "a 1x1 tile needs 2 words")
    d.text(580, 275, "for each FMA")
    return d.svg()


def swizzle() -> str:
    """Chunks of a tile of 128-byte rows, plain and permuted by XOR."""
    d = Drawing(
        760, 300, "Without a swizzle a column of chunks lies in one group of banks; XOR with the row spreads it"
    )
    for left, title, swizzled in ((20, "plain rows", False), (400, "chunk XOR row (swizzled)", True)):
        d.text(left, 24, title)
        for place in range(8):
            d.text(left + 70 + 34 * place, 48, f"{4 * place}-{4 * place + 3}", anchor="middle", fill=_GREY, size=10)
        d.text(left, 48, "banks", fill=_GREY, size=10)
        for row in range(8):
            d.text(left, 72 + 24 * row, f"row {row}", size=11)
            for place in range(8):
                chunk = place ^ row if swizzled else place
                read = chunk == 2
                x, y = left + 54 + 34 * place, 56 + 24 * row
                d.box(x, y, 32, 22, _GROUPS[place] if read else "#eeeeee", "white")
                fill = "white" if read else _GREY
                d.text(x + 16, y + 15, f"{row}.{chunk}", anchor="middle", fill=fill, size=10)
    d.text(20, 272, "ldmatrix reads chunk 2 of eight rows:")
    d.text(20, 288, "all in one group of banks, 8 wavefronts")
    d.text(400, 272, "the same chunks in eight groups of banks:")
    d.text(400, 288, "1 wavefront. A chunk has 16 bytes, a group four banks")
    return d.svg()


def pipeline() -> str:
    """When tiles load and multiply with one buffer, with two, and with a ring that a producer fills."""
    d = Drawing(
        760, 330, "Loads and multiplications over time, with one buffer, two buffers, and a ring of four stages"
    )
    step = 66

    def bar(x: float, y: float, w: float, text: str, fill: str) -> None:
        d.label(90 + x * step, y, w * step - 3, 22, text, fill)

    d.text(20, 24, "one buffer: the math waits for each load")
    for i in range(3):
        bar(3 * i, 34, 2, f"load {i}", _A)
        bar(3 * i + 2, 60, 1, f"mma {i}", _C)
    d.text(20, 110, "two buffers: the next tile loads under the math, and its latency is hidden in part")
    for i in range(4):
        bar(2 * i, 120, 2, f"load {i}", _A)
        bar(2 * i + 2, 146, 1, f"mma {i}", _C)
    d.text(20, 196, "a ring of four stages: a producer runs ahead, and the math never waits once the ring is full")
    for i in range(8):
        row = i % 2
        bar(i, 206 + 26 * row, 2, f"load {i}, stage {i % 4}", _A)
    for i in range(7):
        bar(i + 2, 258, 1, f"mma {i}", _C)
    for y, text in ((50, "copy"), (76, "math"), (136, "copy"), (162, "math"), (235, "producer"), (274, "consumer")):
        d.text(20, y, text, fill=_GREY)
    d.arrow((90, 306), (740, 306))
    d.text(90, 322, "time. A stage is full when its bytes have arrived, and empty when the consumers have read it")
    return d.svg()


def clusters() -> str:
    """What two blocks load, alone and as a cluster whose blocks share B by multicast."""
    d = Drawing(760, 316, "Two blocks load B twice; as a cluster each loads one half and both receive it")
    for left, title, shared in ((20, "two blocks", False), (400, "a cluster of two blocks", True)):
        d.text(left, 24, title)
        d.text(left, 48, "L2", fill=_GREY)
        for i, (x, name) in enumerate(((50, "A, rows 0"), (116, "A, rows 1"), (196, "B, left"), (256, "B, right"))):
            d.label(left + x, 36, 60, 30, name, _A if i < 2 else _B)
        for block in range(2):
            x = left + 10 + 175 * block
            d.box(x, 176, 165, 62, "white")
            d.text(x + 82, 254, f"shared memory of block {block}", anchor="middle", size=11)
            for place, name, fill in ((0, f"A {block}", _A), (1, "B, left", _B), (2, "B, right", _B)):
                d.label(x + 6 + 52 * place, 194, 49, 26, name, fill)
            d.arrow((left + 80 + 66 * block, 66), (x + 30, 192))
        for half in range(2):
            start = left + 226 + 60 * half
            ends = [left + 10 + 175 * block + 82 + 52 * half for block in range(2)]
            if shared:  # one read, which divides where the cluster's blocks receive it
                d.arrow((start, 66), (start, 108), tip=False, width=3)
            for block, end in enumerate(ends):
                d.arrow((start, 108) if shared else (start - 6 + 12 * block, 66), (end, 192))
    d.text(20, 282, "each block reads its rows of A and all of B:")
    d.text(20, 298, "B leaves L2 twice")
    d.text(400, 282, "each block reads one half of B, and TMA writes it to both:")
    d.text(400, 298, "B leaves L2 once (multicast)")
    return d.svg()


DRAWINGS = {"tiles": tiles, "swizzle": swizzle, "pipeline": pipeline, "clusters": clusters}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (DIRECTORY / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
