"""The models under test: transformers classes, built from configs with random weights and fixed seeds.

Sizes: ``tiny`` runs on a CPU in a second and has odd sizes (a vocabulary of 257, 150 hidden units), so that it has
ragged and misaligned operands; ``mid`` is for the GPU tests; ``real`` has the layer shapes of the published model.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

Kind = Literal["decoder", "masked", "vision"]

#: Without special tokens, generation stops at the requested length, and no embedding row is treated as padding.
#: Scenarios turn the cache on themselves, because a training step has no use for one.
_TEXT: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "use_cache": False}


@dataclass(frozen=True)
class Family:
    """One architecture: the kind of its outputs, its transformers classes, and its configs by size.

    ``has_experts``: its MLPs are mixtures of experts.
    """

    kind: Kind
    config: type[Any]
    model: type[Any]
    common: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]]
    has_experts: bool = False


def _stack(hidden: int, intermediate: int, layers: int, heads: int, **others: int) -> dict[str, int]:
    """Returns config values under the names that all families except GPT-2 share."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **others,
    }


def _sparse(
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    experts_per_token: int,
    vocabulary: int,
    scale: float = 0.02,
    **others: int,
) -> dict[str, float]:
    """Returns config values of a mixture of experts of two layers. ``scale``: that of the initial weights."""
    return {
        **_stack(hidden, intermediate, 2, heads, num_key_value_heads=kv_heads, head_dim=head_dim, **others),
        "num_experts_per_tok": experts_per_token,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "initializer_range": scale,
    }


FAMILIES: dict[str, Family] = {
    # Real: Llama 3 8B. Two layers are enough, because every layer has the same shapes; `layers` sets another number.
    "llama": Family(
        "decoder",
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {**_TEXT, "tie_word_embeddings": False},
        {
            "tiny": _stack(64, 176, 2, 4, num_key_value_heads=2, vocab_size=257, max_position_embeddings=256),
            "mid": _stack(1024, 2816, 2, 16, num_key_value_heads=4, vocab_size=32001, max_position_embeddings=1024),
            "real": _stack(4096, 14336, 2, 32, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192),
        },
    ),
    # Real: Qwen2 7B; unlike Llama's, its attention projections have a bias.
    "qwen2": Family(
        "decoder",
        transformers.Qwen2Config,
        transformers.Qwen2ForCausalLM,
        {**_TEXT, "tie_word_embeddings": False},
        {
            "tiny": _stack(56, 150, 2, 7, num_key_value_heads=1, vocab_size=259, max_position_embeddings=256),
            "mid": _stack(896, 4864, 2, 14, num_key_value_heads=2, vocab_size=30001, max_position_embeddings=1024),
            "real": _stack(3584, 18944, 2, 28, num_key_value_heads=4, vocab_size=152064, max_position_embeddings=8192),
        },
    ),
    # GPT-2's Conv1D layers are addmm with a row-major weight. Its tied head has 50257 rows, which no tile divides.
    "gpt2": Family(
        "decoder",
        transformers.GPT2Config,
        transformers.GPT2LMHeadModel,
        {**_TEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        {
            "tiny": {"n_embd": 60, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 251},
            "mid": {"n_embd": 768, "n_layer": 2, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
            "real": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        },
    ),
    # Real: Qwen3 30B-A3B, whose experts are small and many. torch's kernel for experts takes multiples of 8 alone, so
    # the tiny sizes have such hidden units, which no tile divides. Their initial weights are larger than the default:
    # otherwise an expert's result is so small that no error of it is seen.
    "qwen3_moe": Family(
        "decoder",
        transformers.Qwen3MoeConfig,
        transformers.Qwen3MoeForCausalLM,
        {**_TEXT, "tie_word_embeddings": False, "norm_topk_prob": True},
        {
            "tiny": _sparse(64, 96, 4, 2, 16, 2, 257, num_experts=8, moe_intermediate_size=40, scale=0.12),
            "mid": _sparse(1024, 3072, 16, 4, 64, 4, 30001, num_experts=32, moe_intermediate_size=384),
            "real": _sparse(2048, 6144, 32, 4, 128, 8, 151936, num_experts=128, moe_intermediate_size=768),
        },
        has_experts=True,
    ),
    # Real: Mixtral 8x7B, whose experts are large and few.
    "mixtral": Family(
        "decoder",
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {**_TEXT, "tie_word_embeddings": False, "sliding_window": None},
        {
            "tiny": _sparse(64, 88, 4, 2, 16, 2, 257, num_local_experts=5, scale=0.12),
            "mid": _sparse(768, 1792, 12, 4, 64, 2, 32000, num_local_experts=8),
            "real": _sparse(4096, 14336, 32, 8, 128, 2, 32000, num_local_experts=8),
        },
        has_experts=True,
    ),
    # Real: gpt-oss 20b. Its experts have biases, weights that are stored transposed, and a gate of their own. In the
    # published model every second layer has a window of 128 tokens. transformers' static cache counts the tokens of
    # such a layer on the host, so a CUDA graph of a step would repeat one position. Here every layer attends to all
    # tokens.
    "gpt_oss": Family(
        "decoder",
        transformers.GptOssConfig,
        transformers.GptOssForCausalLM,
        {**_TEXT, "tie_word_embeddings": False, "layer_types": ["full_attention"] * 2},
        {
            "tiny": _sparse(72, 40, 4, 2, 16, 2, 261, num_local_experts=6, scale=0.12),
            "mid": _sparse(720, 720, 16, 4, 64, 4, 30001, num_local_experts=16),
            "real": _sparse(2880, 2880, 64, 8, 64, 4, 201088, num_local_experts=32),
        },
        has_experts=True,
    ),
    "bert": Family(
        "masked",
        transformers.BertConfig,
        transformers.BertForMaskedLM,
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        {
            "tiny": _stack(60, 130, 2, 4, vocab_size=263, max_position_embeddings=128),
            "mid": _stack(512, 2048, 2, 8, vocab_size=30522, max_position_embeddings=512),
            "real": _stack(768, 3072, 12, 12, vocab_size=30522, max_position_embeddings=512),
        },
    ),
    # 197 tokens an image (196 patches and one class token): no tile divides the M of its GEMMs.
    "vit": Family(
        "vision",
        transformers.ViTConfig,
        transformers.ViTForImageClassification,
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        {
            "tiny": _stack(60, 130, 2, 4, image_size=32, patch_size=8, num_labels=11),
            "mid": _stack(384, 1536, 2, 6, image_size=224, patch_size=16, num_labels=1000),
            "real": _stack(768, 3072, 12, 12, image_size=224, patch_size=16, num_labels=1000),
        },
    ),
}


def build(
    name: str,
    size: str,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    attention: str = "sdpa",
    layers: int | None = None,
    seed: int = 0,
) -> Any:
    """Returns the model ``name`` at ``size`` with random weights in ``dtype``, in eval mode.

    ``device="meta"`` gives a model of shapes without values. ``layers`` replaces the config's number of layers. A model
    without ``sdpa`` attention gets ``eager``.
    """
    family = FAMILIES[name]
    if attention == "sdpa" and not family.model._supports_sdpa:
        attention = "eager"
    config = family.config(**family.common, **family.sizes[size], attn_implementation=attention)
    if layers is not None:
        config.num_hidden_layers = layers
        if types := getattr(config, "layer_types", None):
            config.layer_types = [types[0]] * layers
    target = torch.device(device)
    with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []):
        torch.manual_seed(seed)
        with target:
            model = family.model(config)
    return cast_parameters(model, dtype).eval()


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Casts the parameters of ``model`` in place, and keeps ties between them.

    ``model.to(dtype)`` would also cast buffers. Rotary frequencies rounded to 16 bits would make it another function.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def reference_of(model: nn.Module, dtype: torch.dtype) -> Any:
    """Returns the same function in a wider dtype: a copy of ``model`` whose parameters have the same (rounded) values.

    transformers computes norms, rotary angles and eager softmax in float32 whatever the model's dtype. Even a float64
    copy is therefore exact only to about 1e-7. That is far below the errors of 16-bit arithmetic that it judges, and
    common to every side.
    """
    reference = cast_parameters(copy.deepcopy(model), dtype)
    if hasattr(reference, "set_experts_implementation"):
        reference.set_experts_implementation("eager")  # the others do not take float64
    return reference


@contextlib.contextmanager
def experts_by(model: Any, implementation: str | None) -> Iterator[None]:
    """Has the experts of ``model`` computed by an implementation of transformers'. None: by its default."""
    if implementation is None:
        yield
        return
    before = model.config._experts_implementation
    model.set_experts_implementation(implementation)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def sample(model: Any, name: str, *, batch: int, seq: int, seed: int = 1) -> dict[str, Tensor]:
    """Returns random inputs for ``model``, with ``labels``: tokens (batch, seq), or images (batch, 3, H, W) and
    classes.

    The labels of a decoder are its tokens.
    """
    parameter = next(model.parameters())
    generator = torch.Generator(device=parameter.device).manual_seed(seed)
    config = model.config

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator, device=parameter.device)

    if FAMILIES[name].kind == "vision":
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        pixels = torch.randn(shape, generator=generator, device=parameter.device)
        return {"pixel_values": pixels.to(parameter.dtype), "labels": integers(config.num_labels, batch)}
    tokens = integers(config.vocab_size, batch, seq)
    labels = tokens if FAMILIES[name].kind == "decoder" else integers(config.vocab_size, batch, seq)
    return {"input_ids": tokens, "labels": labels}


@dataclass(frozen=True)
class LinearShape:
    """The ``out_features`` and ``in_features`` of the linear layers of one name in a model, and the number of such
    layers."""

    name: str
    n: int
    k: int
    count: int


def linear_shapes(name: str, size: str, *, layers: int = 1) -> list[LinearShape]:
    """Returns the linear layers of a model by their last name (``q_proj``, ``lm_head``), in order.

    It allocates no weights.
    """
    model = build(name, size, dtype=torch.float16, device="meta", layers=layers)
    shapes: dict[tuple[str, int, int], int] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            key = (path.rpartition(".")[2], module.out_features, module.in_features)
            shapes[key] = shapes.get(key, 0) + 1
    return [LinearShape(*key, count) for key, count in shapes.items()]
