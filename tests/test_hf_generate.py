"""A tiny Llama from a config: prefill, generate with both caches and a training step, routed and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hgemm_ops import use_custom_gemm

transformers = pytest.importorskip("transformers")

LAYERS = 2


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=request.param,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, 128, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(model: Any, ids: torch.Tensor, cache: str) -> None:
    tokens = 6
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "do_sample": False,
        "pad_token_id": 0,
        "cache_implementation": cache,
        "disable_compile": True,
    }
    expected = model.generate(ids, **options)
    with use_custom_gemm() as report:
        result = model.generate(ids, **options)
    assert torch.equal(result, expected)

    calls: dict[str, int] = {}
    for row in report.rows:
        calls[row.site] = calls.get(row.site, 0) + row.calls
    for layer in range(LAYERS):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            assert calls[f"model.layers.{layer}.self_attn.{name}"] == tokens
        for name in ("gate_proj", "up_proj", "down_proj"):
            assert calls[f"model.layers.{layer}.mlp.{name}"] == tokens
    assert calls["lm_head"] == tokens
    shapes = {(row.m, row.n, row.k) for row in report.rows if row.site == "model.layers.0.mlp.up_proj"}
    assert shapes == {(16, 128, 64), (2, 128, 64)}  # prefill, decode
    assert f"model.layers.{{0-{LAYERS - 1}}}.mlp.up_proj \N{MULTIPLICATION SIGN}{LAYERS}" in str(report)


def test_attention_is_named_after_its_module(model: Any, ids: torch.Tensor) -> None:
    with use_custom_gemm() as report:
        model(ids)
    attention = [row for row in report.rows if row.site.startswith("LlamaAttention ")]
    if model.config._attn_implementation == "eager":
        assert [(row.op, row.batch, row.m, row.calls) for row in attention] == [("matmul", 8, 8, LAYERS)] * 2
    else:
        assert [(row.op, row.reason, row.calls) for row in attention] == [
            ("scaled_dot_product_attention", "fused attention", LAYERS)
        ]


def test_training_step(model: Any, ids: torch.Tensor) -> None:
    def step() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    expected, expected_gradients = step()
    with use_custom_gemm() as report:
        loss, gradients = step()
    model.zero_grad()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, expected_gradients)
    backward = sum(row.calls for row in report.rows if "(backward)" in row.site)
    assert backward >= 2 * (7 * LAYERS + 1)  # of each linear layer: its input's gradient and its weight's


def test_gradient_checkpointing(model: Any, ids: torch.Tensor) -> None:
    model.train()
    model.gradient_checkpointing_enable()
    try:
        with use_custom_gemm() as report:
            model(ids, labels=ids).loss.backward()
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
        model.zero_grad()
    calls = {row.site: row.calls for row in report.rows if row.op == "linear"}
    assert calls["model.layers.0.mlp.up_proj"] == 2
    assert calls["lm_head"] == 1


def test_bfloat16_under_autocast(model: Any, ids: torch.Tensor) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(ids).logits
        with use_custom_gemm() as report:
            result = model(ids).logits
    torch.testing.assert_close(result, expected)
    assert {row.dtype for row in report.rows if row.op == "linear"} == {"bfloat16"}
