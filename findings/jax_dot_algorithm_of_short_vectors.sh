#!/usr/bin/env bash
# jax 0.10.2: on a CPU, precision="BF16_BF16_F32" fails for two vectors of 4,095 elements, and works for 4,096.
#
# The precision of a jax matmul can name an algorithm: here bfloat16 operands and float32 accumulation. According to its
# documentation, it depends on the platform which algorithms are supported, and any other raises an error. One would
# expect that the size of the operands does not matter. On a CPU, products of matrices work, but XLA gives a short
# product with a single result to an emitter that supports no such algorithm. So a layer with 8 inputs and one output
# fails for a batch of one row, and works for two. F16_F16_F16 fails for the same shapes. Without an algorithm all of
# them work.
#
# Seen with jax and jaxlib 0.10.2 on a CPU (x86-64), Python 3.11:
#   [2, 8] @ [8, 1]: 8.0
#   [1, 8] @ [8, 1]: JaxRuntimeError: INVALID_ARGUMENT: Algorithm not supported by the ElementalIrEmitter: ...
#   [4095] @ [4095]: JaxRuntimeError: INVALID_ARGUMENT: Algorithm not supported by the ElementalIrEmitter: ...
#   [4096] @ [4096]: 4096.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp


def product(a: list[int], b: list[int]) -> str:
    x, y = jnp.ones(a, jnp.bfloat16), jnp.ones(b, jnp.bfloat16)
    assert jnp.matmul(x, y).ravel()[0] == a[-1]  # works without the algorithm
    try:
        return str(float(jnp.matmul(x, y, precision="BF16_BF16_F32").ravel()[0]))
    except jax.errors.JaxRuntimeError as error:
        return f"JaxRuntimeError: {error}"


found = []
for a, b in (([2, 8], [8, 1]), ([1, 8], [8, 1]), ([4095], [4095]), ([4096], [4096])):
    found.append(product(a, b))
    print(f"{a} @ {b}: {found[-1]}")
assert (found[0], found[3]) == ("8.0", "4096.0"), "the behaviour has changed"
assert all("Algorithm not supported" in outcome for outcome in found[1:3]), "the behaviour has changed"
PYTHON
