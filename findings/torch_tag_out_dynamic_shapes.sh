#!/usr/bin/env bash
# torch 2.13.0: inductor fails with dynamic shapes on an operator whose .out overload has the tag torch.Tag.out.
#
# The tag says that an overload only writes to its output buffers, so that inductor may plan their memory. One would
# expect the same results with it and without it. With static shapes they are. With dynamic shapes, compiling raises
# InductorError: LoweringException: AssertionError. Without the tag, dynamic shapes work.
#
# Seen with torch 2.13.0 (CPU), Python 3.11, and a C++ compiler, which inductor needs:
#   no tag, dynamic shapes: 45.0 63.0
#   tag, static shapes:     45.0 63.0
#   tag, dynamic shapes:    InductorError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 setuptools
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import library


def define(name: str, tags: list[torch.Tag]) -> library.Library:
    ops = library.Library(name, "DEF")
    ops.define("twice(Tensor x) -> Tensor")
    ops.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", tags=tags)
    ops.impl("twice", lambda x: x * 2, "CPU")
    ops.impl("twice", lambda x: torch.empty_like(x), "Meta")
    ops.impl("twice.out", lambda x, *, out: out.copy_(x * 2), "CPU")
    ops.impl("twice.out", lambda x, *, out: out, "Meta")
    return ops


def run(name: str, dynamic: bool) -> str:
    twice = getattr(torch.ops, name).twice
    torch.compiler.reset()
    compiled = torch.compile(lambda x: twice(x) + 1, dynamic=dynamic)
    try:
        return " ".join(str(compiled(torch.ones(rows, 3)).sum().item()) for rows in (5, 7))
    except Exception as error:
        return type(error).__name__


defined = [define("plain", []), define("tagged", [torch.Tag.out])]
found = run("plain", True), run("tagged", False), run("tagged", True)
for what, result in zip(("no tag, dynamic shapes", "tag, static shapes", "tag, dynamic shapes"), found):
    print(f"{what}: {result}")
assert found == ("45.0 63.0", "45.0 63.0", "InductorError"), "the behaviour has changed"
PYTHON
