"""``python -m integration.science``: training steps of scientific networks in float32, torch against
``use_custom_gemm()``.

The networks are those of ``integration/networks.py``: a U-Net for diffusion, a graph network, and two physics-informed
MLPs. A step is forward, backward and Adam, in eager code. Three sides alternate round by round, each with its own
weights:

- ``torch``;
- ``strict``: in a new ``use_custom_gemm(float32="strict")`` at every step;
- ``split``: the same with ``float32="split"``.

First the residuals and the gradients of each side are compared with those in float64, with cuDNN's convolutions in
float32. The timed steps have torch's defaults: convolutions may run in TF32, and matmuls may not.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hgemm_ops import use_custom_gemm
from hgemm_ops.bench import record
from hgemm_ops.bench.statistics import paired_ratio
from integration import check, networks, timing
from integration.compare import compare, rounding_unit

SIDES = ("torch", "strict", "split")
_ROUND_MS = 40.0
#: Gradients with fewer elements than this are compared as one tensor.
_SMALL = 1000
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_UNIT = rounding_unit(torch.float32)


def context(side: str) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if side == "torch" else use_custom_gemm(float32=side)


def gradients(network: Any, inputs: networks.Inputs) -> tuple[float, dict[str, Tensor]]:
    """Returns the loss, and the residuals and the gradient of every parameter."""
    residuals = network.residuals(**inputs)
    loss = networks.loss(residuals)
    loss.backward()
    found = {f"residual {i}": residual.detach() for i, residual in enumerate(residuals)}
    found |= {f"grad {name}": parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad(set_to_none=True)
    return loss.item(), found


def joined(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns ``found`` with its small gradients in one tensor, each divided by its norm in the reference.

    The error of a gradient with a few elements may be small by chance, and so is no bound for another error.
    """
    norms = {name: tensor.square().mean().sqrt() for name, tensor in reference.items() if name.startswith("grad ")}
    largest = max(norms.values())
    small = [name for name in norms if reference[name].numel() < _SMALL]
    # Some gradients are zero in exact arithmetic: see compare().
    parts = [found[name].double().flatten() * (largest / norms[name].clamp(min=_UNIT * largest)) for name in small]
    others = {name: tensor for name, tensor in found.items() if name not in small}
    return {**others, "grad of small parameters": torch.cat(parts)} if parts else others


def check_errors(network: Any, inputs: networks.Inputs) -> dict[str, dict[str, Any]]:
    """Returns the errors of each side against float64, and which kernels ran its matmuls."""
    losses, outputs, reports = {}, {}, {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # in float32, as matmuls are
        for side in SIDES:
            with context(side) as reports[side]:
                losses[side], outputs[side] = gradients(network, inputs)
        wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
        exact_loss, exact = gradients(copy.deepcopy(network).double(), wide)
    outputs = {side: joined(found, exact) for side, found in outputs.items()}
    exact = joined(exact, exact)
    results: dict[str, dict[str, Any]] = {side: {"loss_error": abs(losses[side] / exact_loss - 1)} for side in SIDES}
    for side in SIDES[1:]:
        comparisons = compare(outputs["torch"], outputs[side], exact, _UNIT)
        worst = max(comparisons, key=lambda comparison: comparison.ratio)
        errors = {"torch": check.finite(worst.torch.rms), "ours": check.finite(worst.ours.rms)}
        rows = check.products(reports[side])
        results[side] |= {
            "tensors": len(comparisons),
            "worst": {"tensor": worst.name, "ratio": check.finite(worst.ratio), **errors},
            "problems": [item.problem for item in comparisons if not item.ok],
            "calls": check.calls_of(rows),
            "our_share_of_flops": check.our_share_of(rows),
        }
    return results


class Operations(TorchDispatchMode):
    """Counts floating-point operations by operator.

    torch's FlopCounterMode also tracks modules, and then refuses gradients of gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.counts[func.overloadpacket.__name__] += count(*args, **kwargs, out_val=result)
        return result


def matmul_share(network: Any, inputs: networks.Inputs) -> float:
    """Returns the share of matmuls in the floating-point operations of a step. The others are convolutions."""
    with Operations() as operations:
        gradients(network, inputs)
    return sum(operations.counts[name] for name in _PRODUCTS) / operations.counts.total()


def peak_bytes(side: timing.Side) -> int:
    """Returns what a step takes from torch's allocator at its peak, beside weights, inputs and Adam's state."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    side(1)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(name: str, size: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """Compares and times the sides on one network."""
    original = networks.build(name, size, device)
    inputs = networks.sample(original, device)
    results = check_errors(original, inputs)

    def side(name: str) -> timing.Side:
        network = copy.deepcopy(original)
        optimizer = torch.optim.Adam(network.parameters(), 1e-4)

        def steps(iterations: int) -> None:
            for _ in range(iterations):
                with context(name):
                    networks.loss(network.residuals(**inputs)).backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

        return steps

    gpu = device.type == "cuda"
    sides = {name: side(name) for name in SIDES}
    for steps in sides.values():
        steps(2)
    slowest = max(timing.start(steps, 2, gpu)() for steps in sides.values())
    iterations = max(1, round(_ROUND_MS / slowest))
    times = timing.timed(sides, rounds=rounds, iterations=iterations, gpu=gpu)
    for side_name, steps in sides.items():
        results[side_name]["ms"] = median(times[side_name])
        results[side_name]["peak_bytes"] = peak_bytes(steps) if gpu else None
        if side_name != "torch":
            results[side_name]["speed"] = dataclasses.asdict(paired_ratio(times["torch"], times[side_name]))
    return {
        "label": f"{name} {size}",
        "parameters": sum(parameter.numel() for parameter in original.parameters()),
        "matmul_share_of_flops": matmul_share(original, inputs),
        "rounds": rounds,
        "iterations": iterations,
        "ok": not any(results[name]["problems"] for name in SIDES[1:]),
        "sides": results,
    }


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--only", help="Only the networks whose names contain this.")
@click.option("--size", type=click.Choice(["tiny", "real"]), help="Default: real on a GPU, tiny on a CPU.")
@click.option("--rounds", type=click.IntRange(min=1), default=25)
@click.option("--device", help="Default: cuda if there is one.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here.")
def main(only: str | None, size: str | None, rounds: int, device: str | None, path: Path | None) -> None:
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    size = size or ("real" if where.type == "cuda" else "tiny")
    results = []
    for name in networks.NETWORKS:
        if only is not None and only not in name:
            continue
        results.append(measure(name, size, where, rounds))
        click.echo(summary(results[-1]))
        if path is not None:  # saved after each network, because a run may be interrupted
            record.save(record.document(results=results), path)
    sys.exit(not all(result["ok"] for result in results))


def summary(result: Mapping[str, Any]) -> str:
    sides = result["sides"]
    ours = "; ".join(
        "{name} {value:.3f} ({low:.3f} to {high:.3f}) of torch's speed, worst error {worst}, our matmuls {share:.0%}, "
        "{verdict}".format(
            name=name,
            **side["speed"],
            worst="NaN" if side["worst"]["ratio"] is None else f"{side['worst']['ratio']:.2f} of torch's",
            share=side["our_share_of_flops"],
            verdict="; ".join(side["problems"]) or "ok",
        )
        for name, side in sides.items()
        if name != "torch"
    )
    share = f"{result['matmul_share_of_flops']:.0%} of its FLOPs are matmuls"
    return f"{result['label']}: torch {sides['torch']['ms']:.3f} ms, {share}; {ours}"


if __name__ == "__main__":
    main()
