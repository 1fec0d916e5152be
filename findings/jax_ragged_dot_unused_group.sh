#!/usr/bin/env bash
# jax 0.10.2: on a CPU, jax.lax.ragged_dot gives NaN in every row if the weights of a group without rows are infinite.
#
# ragged_dot multiplies each row of x by the matrix of the row's group, as the experts of a mixture of experts do. A group
# without rows has no part in the result, so one would expect that its matrix does not matter. Here all results become NaN,
# and so does the whole gradient of x. An infinite or NaN weight of a group that has rows should change only these rows.
#
# Seen with jax and jaxlib 0.10.2 on a CPU, Python 3.11:
#   all weights are ones:                [4.0, 4.0, 4.0, 4.0]
#   group 1, without rows, is infinite:  [nan, nan, nan, nan]
#   the gradient of x:                   [nan, nan, nan, nan]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

rows = jnp.array([2, 0, 2])  # of each group
x, w = jnp.ones((4, 4)), jnp.ones((3, 4, 1))
infinite = w.at[1].set(jnp.inf)


def product(x, w):
    return jax.lax.ragged_dot(x, w, rows)[:, 0]


gradient = jax.grad(lambda x: product(x, infinite).sum())(x)[:, 0]
found = [str(result.tolist()) for result in (product(x, w), product(x, infinite), gradient)]
for what, result in zip(("all weights are ones", "group 1, without rows, is infinite", "the gradient of x"), found):
    print(f"{what}: {result}")
assert found == [str([4.0] * 4), str([float("nan")] * 4), str([float("nan")] * 4)], "the behaviour has changed"
PYTHON
