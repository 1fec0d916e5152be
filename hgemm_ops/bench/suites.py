"""Shape suites, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

LAYOUTS = ("NN", "NT", "TN", "TT")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
KEY = ("dtype", "layout", "batch", "m", "n", "k")  # the fields that identify a matmul without an epilogue

_WIDEST_COPY = 16  # bytes
_DECODE_ROWS = 64  # up to this many rows, reading the weights takes nearly all of the time


@dataclass(frozen=True)
class Case:
    """One timed problem.

    op: ``matmul`` is (m, k) @ (k, n), batched where ``batch`` > 1. ``linear`` is the same through a weight (n, k), with
        ``bias`` and ``activation``. ``add`` is the elementwise sum of two (m, n) tensors; its ``k`` is 1. ``chain``
        sends m rows through the linear layers of ``depth`` decoder blocks of width k and MLP width n, where each
        layer's input is the output of the layer before it.
    layout: how A and B are stored. N is row-major, T is column-major. A weight (n, k) is a T.
    padding: the elements between the end of a row in memory and the start of the next, for A and B.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NN"
    dtype: str = "float16"
    op: str = "matmul"
    bias: bool = False
    activation: str = "none"
    padding: int = 0
    depth: int = 1

    def __post_init__(self) -> None:
        def check(holds: bool, requirement: str) -> None:
            if not holds:
                raise ValueError(f"{requirement}, got {self}")

        check(min(self.m, self.n, self.k, self.batch, self.depth) >= 1, "sizes must be at least 1")
        check(self.padding >= 0, "padding must not be negative")
        check(self.layout in LAYOUTS, f"layout must be one of {LAYOUTS}")
        check(self.dtype in ELEMENT_BYTES, f"dtype must be one of {tuple(ELEMENT_BYTES)}")
        check(self.activation in ACTIVATIONS, f"activation must be one of {ACTIVATIONS}")
        check(self.op in ("matmul", "linear", "add", "chain"), "op must be matmul, linear, add or chain")
        check(self.op == "linear" or not self.fused, "bias and activation need op linear")
        check(
            self.op not in ("linear", "chain") or (self.layout == "NT" and self.batch == 1),
            "linear and chain need layout NT and batch 1",
        )
        check(self.op != "add" or self.k == self.batch == 1, "add needs k = batch = 1")
        check(self.op == "chain" or self.depth == 1, "depth needs op chain")
        check(self.op != "chain" or self.padding == 0, "a chain has no padding")

    @property
    def fused(self) -> bool:
        """Whether the case has a bias or an activation."""
        return self.bias or self.activation != "none"

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(n, k) of every layer of a chain.

        The layers of a block are qkv with a quarter of the heads for keys and for values, the attention output, gate
        and up in one, and down. A layer takes the first k of the features that the layer before it wrote.
        """
        block = ((self.k + self.k // 2, self.k), (self.k, self.k), (2 * self.n, self.k), (self.k, self.n))
        return block * self.depth

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights in a decode case, which has so few rows that little else is read.

        0 for all other cases.
        """
        if self.m > _DECODE_ROWS or self.batch > 1 or self.op == "add" or self.padding:
            return 0
        elements = sum(n * k for n, k in self.layers) if self.op == "chain" else self.n * self.k
        return elements * ELEMENT_BYTES[self.dtype]

    @property
    def flops(self) -> float:
        """Additions and multiplications of the matmul (or of the sum). The epilogue's are not counted."""
        if self.op == "chain":
            return 2.0 * self.m * sum(n * k for n, k in self.layers)
        return float(self.m * self.n) if self.op == "add" else 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The least memory traffic: every input is read once, and the output is written once."""
        if self.op == "add":
            elements = 3 * self.m * self.n
        elif self.op == "chain":
            elements = sum(n * k + self.m * (n + k) for n, k in self.layers)
        else:
            elements = self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) + self.n * self.bias
        return elements * ELEMENT_BYTES[self.dtype]

    @property
    def align(self) -> int:
        """The bytes of the widest copy that is legal at the start of every row of A, B and the output, at most 16."""
        if self.op == "add":
            stored = [(self.m, self.n)]
        elif self.op == "chain":
            stored = [(rows, columns) for n, k in self.layers for rows, columns in ((n, k), (self.m, n))]
        else:
            a, b = (self.m, self.k + self.padding), (self.k, self.n + self.padding)
            if self.layout[0] == "T":
                a = (self.k, self.m + self.padding)
            if self.layout[1] == "T":
                b = (self.n, self.k + self.padding)
            stored = [a, b, (self.m, self.n)]
        strides = [columns for rows, columns in stored if rows > 1]
        if self.batch > 1:
            strides += [rows * columns for rows, columns in stored]
        return gcd(_WIDEST_COPY, *(stride * ELEMENT_BYTES[self.dtype] for stride in strides))

    @property
    def label(self) -> str:
        """The name of the case within its suite: ``NT 4096x4096x4096``."""
        if self.op == "add":
            return f"{self.dtype} {self.m}x{self.n}"
        if self.op == "chain":
            return f"{self.m} rows, {len(self.layers)} layers of {self.k} and {self.n}"
        words = [self.layout]
        if self.batch > 1:
            words.append(f"B{self.batch}")
        words.append(f"{self.m}x{self.n}x{self.k}")
        if self.padding:
            words.append(f"ld+{self.padding}")
        if self.bias:
            words.append("bias")
        if self.activation != "none":
            words.append(self.activation)
        return " ".join(words)


def with_dtype(cases: Iterable[Case], dtype: str) -> tuple[Case, ...]:
    """The same problems in another dtype, without duplicates."""
    return tuple(dict.fromkeys(replace(case, dtype=dtype) for case in cases))


def parse_shapes(text: str, *, dtype: str, layouts: Sequence[str]) -> tuple[Case, ...]:
    """The cases of ``MxNxK`` or ``BxMxNxK`` shapes, separated by commas, in each layout.

    Raises:
        ValueError: a shape has another form.
    """
    cases = []
    for shape in text.split(","):
        try:
            sizes = [int(size) for size in shape.strip().lower().split("x")]
        except ValueError:
            sizes = []
        if len(sizes) not in (3, 4):
            raise ValueError(f"a shape is MxNxK or BxMxNxK, got {shape!r}")
        batch, m, n, k = (1, *sizes) if len(sizes) == 3 else sizes
        cases += [Case(m, n, k, batch=batch, layout=layout, dtype=dtype) for layout in layouts]
    return tuple(cases)


# Shapes are (m, n, k). The layers of Llama-3-8B are (n, k): qkv, attention output, gate and up in one, down.
_LLAMA_LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
_LLM_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

# (n, k) of Llama-3-70B's layers split across eight GPUs (qkv, attention output, gate and up, down, q), and of
# Qwen2-7B's MLP.
_SLICED_LAYERS = (
    (1280, 8192),
    (8192, 1024),
    (7168, 8192),
    (8192, 3584),
    (1024, 8192),
    (18944, 3584),
    (3584, 18944),
)

_LAYOUT_SHAPES = (
    (1024, 1024, 1024),
    (4096, 4096, 512),
    (4096, 4096, 4096),
    (4096, 4096, 8192),
    (14336, 4096, 4096),
    (8192, 8192, 8192),
)

_RAGGED_SHAPES = (
    # One size off a power of two, then two, then all.
    (4096, 4096, 4097),
    (4096, 4097, 4096),
    (4097, 4096, 4096),
    (4096, 4095, 4097),
    (4095, 4096, 4097),
    (4095, 4095, 4095),
    (4097, 4097, 4097),
    (8193, 8193, 8193),
    (8191, 2049, 1023),
    (2047, 2049, 2051),
    (1023, 8193, 511),
    # Divisible by 8, 4 and 2 elements, but by no tile size.
    (1000, 1000, 1000),
    (3000, 5000, 7000),
    (4100, 4100, 4100),
    (6146, 2050, 4098),
    # Primes and odd numbers.
    (511, 4099, 2047),
    (513, 511, 8191),
    (777, 1237, 3331),
    (1001, 1003, 1007),
    # Vocabularies: GPT-2's, and a Llama tokenizer with one token added.
    (1, 50257, 768),
    (128, 50257, 1600),
    (1024, 50257, 768),
    (16, 32001, 4096),
    (2048, 32001, 4096),
)
_RAGGED_PADDING = (1, 2, 4, 8)  # elements after rows of 4096, which are then 2-, 4-, 8- and 16-byte aligned

_BATCHES = (
    # (batch, m, n, k)
    (256, 512, 512, 64),  # attention scores
    (256, 512, 64, 512),  # attention output
    (64, 1024, 1024, 128),
    (64, 1024, 128, 1024),
    (8, 2048, 2048, 2048),
    (512, 1, 128, 1024),  # attention output of one decoded token
    (512, 1, 1024, 128),
    (32, 128, 128, 128),
    (1024, 16, 16, 64),
    (192, 197, 197, 64),  # ViT: 196 patches and a class token
    (192, 197, 64, 197),
    (4096, 32, 32, 32),  # windows, blocks of a blocked matrix, heads of a few tokens
    (512, 64, 64, 64),
    (4096, 8, 8, 64),
    (1000, 17, 23, 31),
)

_FUSED_SHAPES = (
    (16, 16384, 4096),
    (512, 16384, 4096),
    (4096, 16384, 4096),
    (8192, 3072, 768),  # BERT-base and GPT-2, 16 sequences of 512 tokens
)

_LARGE_SHAPES = tuple(product((4096, 8192, 16384), (4096, 8192, 16384), (2048, 4096, 8192)))

_FLOAT32 = (
    # Cubes, long and short K, and layers of GPT-2, BERT and Llama, forward (NT) and gradients (NN, TN).
    *((size, size, size, layout) for size in (512, 1024, 2048, 4096, 8192) for layout in ("NN", "NT", "TN")),
    *((m, n, k, layout) for m, n, k in ((2048, 2048, 8192), (8192, 8192, 2048)) for layout in ("NN", "NT")),
    *((8192, n, k, "NT") for n, k in ((3072, 768), (768, 3072), (2304, 768), (50304, 768))),
    *((m, n, 8192, "TN") for m, n in ((3072, 768), (768, 3072), (768, 50304))),
    *((m, 14336, 4096, "NT") for m in (128, 512, 2048)),
    # Ragged.
    *((m, n, k, layout) for m, n, k in ((4097, 4097, 4097), (1001, 1003, 1007)) for layout in ("NN", "NT")),
    (3000, 5000, 7000, "NN"),
    (1024, 50257, 768, "NT"),
    # As many rows as in decoding.
    *((m, n, 4096, layout) for m in (1, 4, 16, 64) for n in (4096, 14336) for layout in ("NN", "NT")),
)

# Timed with every peer. There are few, because Triton is autotuned for each.
_PEER_SHAPES = ((1024, 6144, 4096), (2048, 28672, 4096), (4096, 4096, 4096), (8192, 8192, 4096))

SUITES: dict[str, tuple[Case, ...]] = {
    "seeds-large": tuple(Case(*shape) for shape in _LARGE_SHAPES),
    "seeds-large-nt": tuple(Case(*shape, layout="NT") for shape in _LARGE_SHAPES),
    "peers": tuple(Case(*shape, layout="NT") for shape in _PEER_SHAPES),
    "seeds-small": tuple(
        Case(m, n, k) for m, n, k in product((1024, 2048, 4096), (1024, 2048, 4096), (256, 512, 1024))
    ),
    "seeds-sgemm": tuple(
        Case(m, n, k, dtype="float32") for m, n, k in product((2048, 4096), (2048, 4096), (512, 1024))
    ),
    "float32": tuple(Case(m, n, k, layout=layout, dtype="float32") for m, n, k, layout in _FLOAT32),
    "float32-rows": tuple(
        Case(m, n, k, layout=layout, dtype="float32")
        for m in (1, 2, 4, 8, 16, 32, 64)
        for n, k in _LLAMA_LAYERS
        for layout in ("NT", "NN")
    ),
    "seeds-add": tuple(
        Case(m, n, 1, op="add", dtype=dtype)
        for dtype, m, n in product(("float32", "float16"), (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048, 4096))
    ),
    "llm": tuple(Case(m, n, k, layout="NT") for m in _LLM_TOKENS for n, k in _LLAMA_LAYERS),
    "decode-nn": tuple(Case(m, n, k) for m in (1, 8, 32) for n, k in _LLAMA_LAYERS),
    "decode-tp": tuple(Case(m, n, k, layout="NT") for m in (1, 4, 16) for n, k in _SLICED_LAYERS),
    "decode-ragged": tuple(
        Case(m, n, k, layout="NT") for m in (1, 16) for n, k in ((50257, 768), (32001, 4096), (4099, 4097))
    ),
    "decode-chain": tuple(Case(m, 14336, 4096, layout="NT", op="chain", depth=8) for m in (1, 2, 4, 8, 16)),
    "layouts": tuple(Case(*shape, layout=layout) for shape in _LAYOUT_SHAPES for layout in LAYOUTS),
    "ragged": tuple(
        [Case(*shape, layout=layout) for shape in _RAGGED_SHAPES for layout in ("NN", "NT")]
        + [
            Case(4096, 4096, 4096, layout=layout, padding=padding)
            for padding in _RAGGED_PADDING
            for layout in ("NN", "NT")
        ]
    ),
    "bmm": tuple(Case(m, n, k, batch=batch, layout=layout) for batch, m, n, k in _BATCHES for layout in ("NN", "NT")),
    "fused": tuple(
        Case(*shape, layout="NT", op="linear", bias=True, activation=activation)
        for shape in _FUSED_SHAPES
        for activation in ACTIVATIONS
    ),
}
