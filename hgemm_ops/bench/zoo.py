"""The suite ``zoo``: the matmuls of published models. The shapes follow from the configurations in ``zoo.csv``.

Layers are as in the model's code in transformers. They have one weight or several, stored as (n, k), which is layout
NT, or as (k, n) in GPT-2. Biases are left out: tuning tables have matmuls without a bias, and a bias costs torch and us
alike.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from .suites import Case

#: Tokens in a batch: decoding, an image of 196 patches, prompts, training.
TOKENS = (1, 4, 16, 64, 197, 256, 512, 1000, 2048, 4096, 8192)

#: A shape is left out if its work, or one set of its operands and result, is larger than this. It would take most of
#: the time.
MOST_BYTES = 2_000_000_000
MOST_FLOPS = 2.2e12


def fits(case: Case) -> bool:
    """Whether a survey times the case."""
    return case.bytes <= MOST_BYTES and case.flops <= MOST_FLOPS


@dataclass(frozen=True)
class Model:
    """A row of ``zoo.csv``.

    parameters: in units of 10**9, as published. A test adds them up from the sizes.
    layers: the number of layers.
    cross_layers: how many layers attend to an encoder as well.
    dtype: the dtype of the published weights; float16 where that is float32.
    tied: whether the head is the embedding.
    sequence: the length at which attention is timed.
    """

    name: str
    parameters: float
    layers: int
    cross_layers: int
    dtype: str
    layout: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: int
    qkv_in_one: int
    gate_up_in_one: int
    vocab: int
    tied: int
    sequence: int
    source: str

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """(n, k) of every linear layer without duplicates. The head is the last one."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = (
            [(queries + 2 * keys, self.hidden)] if self.qkv_in_one else [(queries, self.hidden), (keys, self.hidden)]
        )
        found.append((self.hidden, queries))
        found.append(((1 + self.gate_up_in_one) * self.intermediate, self.hidden))
        found.append((self.hidden, self.intermediate))
        if self.vocab:
            found.append((self.vocab, self.hidden))
        return tuple(dict.fromkeys(found))

    @property
    def attention(self) -> tuple[Case, ...]:
        """The matmuls of attention, for a whole sequence and for one more token.

        These are the scores, and the matmul of the scores with the values.
        """
        length, width = self.sequence, self.head_dim
        return tuple(
            Case(rows, n, k, batch=self.heads, layout=layout, dtype=self.dtype)
            for rows in (length, 1)
            for n, k, layout in ((length, width, "NT"), (width, length, "NN"))
        )

    @property
    def cases(self) -> tuple[Case, ...]:
        """All matmuls of the model that fit into a survey."""
        linear = (
            Case(m, n, k, layout=layout, dtype=self.dtype)
            for n, k in self.weights
            for layout in ("NT" if (n, k) == (self.vocab, self.hidden) else self.layout,)
            for m in TOKENS
        )
        return tuple(case for case in (*linear, *self.attention) if fits(case))

    @property
    def matrices(self) -> frozenset[tuple[int, int]]:
        """(n, k) of all matmuls of the model, including attention."""
        return frozenset((case.n, case.k) for case in self.cases)


def _read() -> dict[str, Model]:
    kinds = {"str": str, "int": int, "float": float}
    with Path(__file__).with_name("zoo.csv").open(newline="") as file:
        rows = [{f.name: kinds[str(f.type)](row[f.name]) for f in fields(Model)} for row in csv.DictReader(file)]
    return {row["name"]: Model(**row) for row in rows}


#: The models by name.
MODELS = _read()


def models_of(names: Sequence[str] = ()) -> dict[Case, tuple[str, ...]]:
    """Every case of the named models, with the models that have it. Without a name, the cases of all models."""
    found: dict[Case, tuple[str, ...]] = {}
    for name in names or MODELS:
        for case in MODELS[name].cases:
            found[case] = (*found.get(case, ()), name)
    return found


@functools.cache
def matrices() -> frozenset[tuple[int, int]]:
    """(n, k) of the matmuls of all models, and (k, n), because the gradients of a layer swap them."""
    pairs = {pair for model in MODELS.values() for pair in model.matrices}
    return frozenset(pairs | {(k, n) for n, k in pairs})
