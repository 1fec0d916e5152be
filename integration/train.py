"""``python -m integration.train``: an ordinary GPT-2 training loop, torch against ``use_custom_gemm()``.

The model is GPT-2 small with random weights. It trains with float16 autocast, GradScaler, AdamW with a warm-up, and
gradients clipped to norm 1. The data are sequences of a random Markov chain of 512 of its words. Without warm-up and
clipping the loss stays on a plateau. Rounding then decides whether a run leaves it after 80 steps or not within 200;
that is also true of torch's own runs.

Five models start with the same weights and take turns, ten steps each:

- ``torch``;
- ``ours``: in a new context at every step;
- ``again``: torch, with the sequences of each batch in another order, which shows what rounding alone does to the loss;
- ``torch compiled`` and ``ours compiled``: the first two under torch.compile, each compiled as it runs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from torch import Tensor

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record
from hgemm_ops.bench.statistics import paired_ratio
from integration import models, timing

BLOCK = 10  # consecutive steps of one side
WARM_UP = 60  # steps
SIDES = ("torch", "ours", "again", "torch compiled", "ours compiled")


@dataclass(frozen=True)
class Settings:
    steps: int = 200
    batch: int = 8
    tokens: int = 1024
    layers: int = 12
    width: int = 768
    vocabulary: int = 50304
    words: int = 512
    compiled: bool = True


def batches(settings: Settings, device: torch.device) -> Tensor:
    """Returns tokens (steps, batch, tokens). Each word has four successors, with decreasing likelihood."""
    generator = torch.Generator(device).manual_seed(0)
    successors = torch.randint(settings.words, (settings.words, 4), generator=generator, device=device)
    likelihood = torch.tensor([0.55, 0.25, 0.15, 0.05], device=device)
    sequences = settings.steps * settings.batch
    token = torch.randint(settings.words, (sequences,), generator=generator, device=device)
    tokens = [token]
    for _ in range(settings.tokens - 1):
        pick = torch.multinomial(likelihood, sequences, replacement=True, generator=generator)
        token = successors[token, pick]
        tokens.append(token)
    return torch.stack(tokens, 1).view(settings.steps, settings.batch, settings.tokens)


class Side:
    """A model in training, and the losses of its steps."""

    def __init__(self, name: str, model: torch.nn.Module, device: torch.device) -> None:
        self.name = name
        self.losses: list[Tensor] = []
        self._type = device.type
        self._model = model
        self._run: Callable[..., Any] = model
        if "compiled" in name:
            # The value is inductor's default, set explicitly for one side. Otherwise dynamo, to which both models are
            # the same, gives our side torch's graph.
            self._run = torch.compile(model, options={"shape_padding": True} if "ours" in name else None)
        self._optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=device.type == "cuda")
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
        self._scaler = torch.amp.GradScaler(self._type, enabled=device.type == "cuda")

    def step(self, tokens: Tensor) -> None:
        if self.name == "again":
            tokens = tokens.flip(0)
        with use_custom_gemm() if "ours" in self.name else nullcontext():
            with torch.autocast(self._type, torch.float16 if self._type == "cuda" else torch.bfloat16):
                loss = self._run(input_ids=tokens, labels=tokens).loss
            self._scaler.scale(loss).backward()
            self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._schedule.step()
            self._optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())


def train(settings: Settings, device: torch.device) -> dict[str, Any]:
    """Returns the milliseconds per step by block, the losses by step, and the comparisons of both."""
    family = models.FAMILIES["gpt2"]
    sizes = {**family.sizes["real"], "n_layer": settings.layers, "n_embd": settings.width}
    sizes |= {"vocab_size": settings.vocabulary, "n_positions": settings.tokens}
    torch.manual_seed(0)
    with device:
        model = family.model(family.config(**family.common, **sizes))
    names = SIDES if settings.compiled else SIDES[:3]
    sides = {name: Side(name, copy.deepcopy(model).train(), device) for name in names}
    data = batches(settings, device)
    ms: dict[str, list[float]] = {name: [] for name in names}
    for start in range(0, settings.steps, BLOCK):
        for name in names if start // BLOCK % 2 else reversed(names):

            def block(_: int, side: Side = sides[name], start: int = start) -> None:
                for tokens in data[start : start + BLOCK]:
                    side.step(tokens)

            ms[name].append(timing.start(block, 1, device.type == "cuda")() / len(data[start : start + BLOCK]))
    losses = {name: torch.stack(side.losses).float().tolist() for name, side in sides.items()}
    kept = {name: blocks[2:] or blocks for name, blocks in ms.items()}  # without compilation and warm-up

    def apart(one: str, other: str) -> float:
        return max(abs(a - b) for a, b in zip(losses[one], losses[other], strict=True))

    pairs = [("torch", "ours"), *([("torch compiled", "ours compiled")] if settings.compiled else [])]
    return {
        "ms": ms,
        "losses": losses,
        "speed": {ours: dataclasses.asdict(paired_ratio(kept[theirs], kept[ours])) for theirs, ours in pairs},
        "largest_loss_difference": {
            f"{other} from {one}": apart(one, other) for one, other in (("torch", "again"), *pairs)
        },
    }


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--steps", type=click.IntRange(min=1), default=Settings.steps)
@click.option("--compiled/--eager", default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
def main(steps: int, compiled: bool, path: Path | None) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA GPU: there is nothing to compare")
    settings = Settings(steps=steps, compiled=compiled)
    results = train(settings, torch.device("cuda"))
    for name, speed in results["speed"].items():
        click.echo(f"{name}: {speed['value']:.3f} of torch's speed ({speed['low']:.3f} to {speed['high']:.3f})")
    for name, distance in results["largest_loss_difference"].items():
        click.echo(f"loss: {name} by {distance:.4f} at most")
    if path is not None:
        document = record.document(
            transformers=transformers.__version__, train=dataclasses.asdict(settings), results=results
        )
        record.save(document, path)


if __name__ == "__main__":
    main()
