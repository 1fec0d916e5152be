"""What is done with a model: one function per scenario, called alike for the reference, torch and ours.

A scenario returns named tensors; the caller decides under which context it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

Inputs = Mapping[str, Tensor]
Outputs = dict[str, Tensor]


def _without_labels(inputs: Inputs) -> Outputs:
    return {name: tensor for name, tensor in inputs.items() if name != "labels"}


@torch.no_grad()
def forward(model: Any, inputs: Inputs) -> Outputs:
    """Encoders: one pass over the batch."""
    return {"logits": model(**_without_labels(inputs)).logits}


@torch.no_grad()
def prefill(model: Any, inputs: Inputs) -> Outputs:
    """Decoders: one pass over the prompt that fills a key-value cache, the logits of every token kept."""
    return {"logits": model(**_without_labels(inputs), use_cache=True).logits}


def train(model: Any, inputs: Inputs) -> Outputs:
    """Forward and backward: logits, loss and the gradient of every parameter (no optimizer step).

    The loss is scaled by 128 for every label: unscaled, the gradient of a logit is about 1 / (labels * vocabulary) and
    vanishes in float16. But by 2**15 at most: models whose loss is float16 (BERT) get the factor as its gradient.
    Gradients stay scaled, by the same factor on all sides.
    """
    model.train()
    output = model(**inputs)
    (output.loss * min(128 * inputs["labels"].numel(), 2**15)).backward()
    model.eval()
    gradients = {f"grad {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"logits": output.logits.detach(), "loss": output.loss.detach(), **gradients}


def generate(model: Any, inputs: Inputs, *, new_tokens: int, cache: str | None) -> Outputs:
    """transformers' own greedy ``generate``: ``tokens`` (batch, steps) and ``logits`` (batch, steps, vocabulary).

    ``cache``: None for the dynamic cache, ``"static"`` for the static one.
    """
    prompt = inputs["input_ids"]
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        do_sample=False,
        use_cache=True,
        cache_implementation=cache,
        disable_compile=True,  # with a static cache generate would compile the model, which takes minutes
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=0,
    )
    return {"tokens": output.sequences[:, prompt.shape[1] :], "logits": torch.stack(output.logits, dim=1)}


class Decoder:
    """Greedy decoding over a static cache, a token a step.

    ``capacity``: tokens the cache holds, prompt included. ``graph``: make the steps replays of one CUDA graph; not for
    eager attention, whose mask takes a scalar from the host, which a capture refuses. ``compiled``: what runs the steps
    in place of ``model``, which then runs the prompt alone. ``token`` (batch, 1) and
    ``logits`` (batch, vocabulary) are buffers: the latest choice and what it was chosen from.
    """

    # Steps run eagerly before the capture: they create what a capture must not (library handles, autotuned choices).
    _EAGER_STEPS = 2

    @torch.no_grad()
    def __init__(self, model: Any, prompt: Tensor, *, capacity: int, graph: bool, compiled: Any = None) -> None:
        self._model = compiled or model
        self._cache = transformers.StaticCache(config=model.config, max_cache_len=capacity)
        self._room = capacity - prompt.shape[1]
        self._eager_left = self._EAGER_STEPS if graph else capacity
        self._graph: torch.cuda.CUDAGraph | None = None
        self.logits = model(input_ids=prompt, past_key_values=self._cache, use_cache=True).logits[:, -1].clone()
        self.token = self.logits.argmax(-1, keepdim=True)

    @torch.no_grad()
    def _forward(self) -> None:
        output = self._model(input_ids=self.token, past_key_values=self._cache, use_cache=True)
        self.logits.copy_(output.logits[:, -1])
        self.token.copy_(self.logits.argmax(-1, keepdim=True))

    def step(self) -> None:
        """Appends the latest token and chooses the next."""
        if self._room <= 0:  # a replay past the end would write outside the cache
            raise ValueError("the cache is full: ask for a larger capacity")
        self._room -= 1
        if self._eager_left > 0:
            self._eager_left -= 1
            self._forward()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._forward()
        self._graph.replay()


def decode(model: Any, inputs: Inputs, *, new_tokens: int, graph: bool) -> Outputs:
    """``generate`` by way of :class:`Decoder`."""
    prompt = inputs["input_ids"]
    return follow(Decoder(model, prompt, capacity=prompt.shape[1] + new_tokens, graph=graph), new_tokens)


def follow(decoder: Decoder, steps: int) -> Outputs:
    """What ``generate`` returns, of the next ``steps`` of ``decoder``."""
    tokens, logits = [], []
    for _ in range(steps):
        tokens.append(decoder.token.clone())
        logits.append(decoder.logits.clone())
        decoder.step()
    return {"tokens": torch.cat(tokens, dim=1), "logits": torch.stack(logits, dim=1)}


@torch.no_grad()
def along(model: Any, inputs: Inputs, tokens: Tensor) -> Tensor:
    """The logits (batch, steps, vocabulary) of ``model`` along the ``tokens`` that another generation chose.

    In one pass without a cache, so that it judges either kind of cache.
    """
    prompt = inputs["input_ids"]
    sequence = torch.cat([prompt, tokens[:, :-1]], dim=1)
    logits: Tensor = model(input_ids=sequence, use_cache=False).logits
    return logits[:, prompt.shape[1] - 1 :]
