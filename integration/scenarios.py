"""The scenarios: what is done with a model. The reference, torch and our side all call the same functions.

A scenario returns named tensors. The caller decides in which context it runs.
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
    """Encoders: runs one pass over the batch."""
    return {"logits": model(**_without_labels(inputs)).logits}


@torch.no_grad()
def prefill(model: Any, inputs: Inputs) -> Outputs:
    """Decoders: runs one pass over the prompt that fills a key-value cache, and returns the logits of every token."""
    return {"logits": model(**_without_labels(inputs), use_cache=True).logits}


def train(model: Any, inputs: Inputs) -> Outputs:
    """Runs forward and backward. Returns the logits, the loss and the gradient of every parameter (no optimizer step).

    The loss is scaled by 128 times the number of labels. Without that, the gradient of a logit is about 1 / (labels *
    vocabulary) and vanishes in float16. The factor is at most 2**15, because models whose loss is float16 (BERT) get it
    as the loss's gradient. Gradients stay scaled, by the same factor on all sides.
    """
    model.train()
    output = model(**inputs)
    (output.loss * min(128 * inputs["labels"].numel(), 2**15)).backward()
    model.eval()
    gradients = {f"grad {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"logits": output.logits.detach(), "loss": output.loss.detach(), **gradients}


def generate(model: Any, inputs: Inputs, *, new_tokens: int, cache: str | None) -> Outputs:
    """Runs transformers' own greedy ``generate``.

    ``cache``: None for the dynamic cache, ``"static"`` for the static one.

    Returns:
        ``tokens`` (batch, steps) and ``logits`` (batch, steps, vocabulary).
    """
    prompt = inputs["input_ids"]
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new_tokens,
        do_sample=False,
        use_cache=True,
        cache_implementation=cache,
        disable_compile=True,  # otherwise generate compiles the model for a static cache, which takes minutes
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=0,
    )
    return {"tokens": output.sequences[:, prompt.shape[1] :], "logits": torch.stack(output.logits, dim=1)}


class Decoder:
    """Decodes greedily with a static cache, one token per step.

    ``capacity`` is the number of tokens in the cache, including the prompt. With ``graph``, the steps are replays of
    one CUDA graph. ``compiled``, if given, runs the steps in place of ``model``, which then runs only the prompt.

    Eager attention gets a mask that the steps update on the device. transformers' own mask takes a scalar from the
    host, which a capture refuses.

    ``token`` (batch, 1) and ``logits`` (batch, vocabulary) are buffers: the latest token, and the logits it was chosen
    from.
    """

    # The number of eager steps before the capture. They create what must not be created during a capture, such as
    # library handles and autotuned choices.
    _EAGER_STEPS = 2

    @torch.no_grad()
    def __init__(self, model: Any, prompt: Tensor, *, capacity: int, graph: bool, compiled: Any = None) -> None:
        self._model = compiled or model
        self._cache = transformers.StaticCache(config=model.config, max_cache_len=capacity)
        self._room = capacity - prompt.shape[1]
        self._eager_left = self._EAGER_STEPS if graph else capacity
        self._graph: torch.cuda.CUDAGraph | None = None
        self._mask: Tensor | None = None
        if model.config._attn_implementation == "eager":
            lowest = torch.finfo(model.dtype).min
            self._mask = torch.full((1, 1, 1, capacity), lowest, dtype=model.dtype, device=prompt.device)
            self._mask[..., : prompt.shape[1]] = 0
            self._place = torch.tensor([prompt.shape[1]], device=prompt.device)
        self.logits = model(input_ids=prompt, past_key_values=self._cache, use_cache=True).logits[:, -1].clone()
        self.token = self.logits.argmax(-1, keepdim=True)

    @torch.no_grad()
    def _forward(self) -> None:
        if self._mask is not None:
            self._mask.index_fill_(3, self._place, 0)
            self._place.add_(1)
        output = self._model(
            input_ids=self.token, attention_mask=self._mask, past_key_values=self._cache, use_cache=True
        )
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
    """Does the same as ``generate``, with a :class:`Decoder`."""
    prompt = inputs["input_ids"]
    return follow(Decoder(model, prompt, capacity=prompt.shape[1] + new_tokens, graph=graph), new_tokens)


def follow(decoder: Decoder, steps: int) -> Outputs:
    """Runs ``steps`` steps of ``decoder``. Returns what ``generate`` returns."""
    tokens, logits = [], []
    for _ in range(steps):
        tokens.append(decoder.token.clone())
        logits.append(decoder.logits.clone())
        decoder.step()
    return {"tokens": torch.cat(tokens, dim=1), "logits": torch.stack(logits, dim=1)}


@torch.no_grad()
def along(model: Any, inputs: Inputs, tokens: Tensor) -> Tensor:
    """Returns the logits (batch, steps, vocabulary) of ``model`` along ``tokens``, which another generation chose.

    It runs in one pass without a cache, so that it is a reference for either kind of cache.
    """
    prompt = inputs["input_ids"]
    sequence = torch.cat([prompt, tokens[:, :-1]], dim=1)
    logits: Tensor = model(input_ids=sequence, use_cache=False).logits
    return logits[:, prompt.shape[1] - 1 :]
