"""Training steps of scientific networks, with tiny ones on a CPU."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks import result_page, tables
from hgemm_ops.bench import record
from integration import networks, science

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("science") / "science.json"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = CliRunner().invoke(science.main, ["--device", "cpu", "--rounds", "2", "--json", str(path)])
    torch.set_num_threads(threads)
    assert outcome.exit_code == 0, outcome.output
    return record.load(path)


def test_every_network_is_compared_and_timed_on_every_side(document: dict[str, Any]) -> None:
    assert [result["label"] for result in document["results"]] == [f"{name} tiny" for name in networks.NETWORKS]
    for result in document["results"]:
        assert result["ok"] and 0 < result["matmul_share_of_flops"] <= 1
        assert result["sides"].keys() == {"torch", "strict", "split"}
        assert all(side["ms"] > 0 and side["loss_error"] < 1e-5 for side in result["sides"].values())
        for side in (result["sides"]["strict"], result["sides"]["split"]):
            assert side["worst"]["ratio"] == 1 and side["speed"]["low"] > 0  # torch serves all sides here
    shares = {result["label"]: result["matmul_share_of_flops"] for result in document["results"]}
    assert shares["unet tiny"] < 0.5 and shares["pinn tiny"] == 1, "a U-Net consists mostly of convolutions"


def test_the_results_become_a_table_and_a_sentence(document: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(json.dumps(document))
    document["environment"] |= {"gpu": "NVIDIA T1", "driver": "1.2"}
    document["results"][-1]["sides"]["split"]["problems"] = ["residual 0: error"]
    document["results"][-1]["ok"] = False
    page = result_page.page({"science": document}, tmp_path)
    assert (
        "| unet tiny | split | " in page and "| residual 0: error |" in page and "| pinn tiny | strict | 100%" in page
    )
    said = tables.science_line(document)
    assert "| mesh_graph_net tiny | 100% | " in said
    (wrong,) = (line for line in said.splitlines() if "WRONG" in line)
    assert wrong.startswith("| unet tiny | ") and wrong.endswith(", WRONG |")


@pytest.mark.parametrize("fault", [1 + 1e-5, math.nan])
def test_a_fault_of_a_side_is_seen(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = science.gradients

    def faulty(network: Any, inputs: networks.Inputs) -> Any:
        loss, found = gradients(network, inputs)
        is_ours = network is original and next(calls) > 0
        return loss, {name: tensor * fault if is_ours else tensor for name, tensor in found.items()}

    original = networks.build("mesh_graph_net", "tiny", CPU)
    calls = iter(range(10))
    monkeypatch.setattr(science, "gradients", faulty)
    results = science.check_errors(original, networks.sample(original, CPU))
    assert results["strict"]["problems"] and results["split"]["problems"]


def test_small_gradients_are_compared_as_one() -> None:
    reference = {"residual 0": torch.ones(3), "grad bias": torch.full((4,), 2.0), "grad zero": torch.zeros(2)}
    reference |= {"grad weight": torch.full((2000,), 8.0)}
    found = {name: tensor + 1 if name == "grad bias" else tensor for name, tensor in reference.items()}
    joined = science.joined(found, reference)
    assert joined.keys() == {"residual 0", "grad weight", "grad of small parameters"}
    assert joined["grad of small parameters"].tolist() == [12.0] * 4 + [0.0] * 2


def test_networks_learn() -> None:
    for name in networks.NETWORKS:
        network = networks.build(name, "tiny", CPU)
        inputs = networks.sample(network, CPU)
        before = copy.deepcopy(network)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        losses = []
        for _ in range(20):
            loss = networks.loss(network.residuals(**inputs))
            loss.backward()
            assert all(parameter.grad is not None for parameter in network.parameters())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < 0.9 * losses[0], name
        again = networks.build(name, "tiny", CPU)
        assert all(torch.equal(a, b) for a, b in zip(before.parameters(), again.parameters(), strict=True))


def test_the_unet_has_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        network = networks.UNet()
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e5) == 357  # 35.7 million


def test_the_equation_is_burgers() -> None:
    """Its residual vanishes for u = x / (1 + t), a solution of u_t + u u_x = nu u_xx."""
    network = networks.PhysicsInformed(points=40)
    inputs = {name: tensor.double() for name, tensor in networks.sample(network, CPU).items()}
    network.forward = lambda points: points[:, :1] / (1 + points[:, 1:]) + 0 * points[:, :1] ** 3  # type: ignore[method-assign]
    residual, start = network.residuals(**inputs)
    assert residual.abs().max() < 1e-12
    assert torch.allclose(start, inputs["start"][:, :1] + torch.sin(math.pi * inputs["start"][:, :1]))
    assert (inputs["points"][:, 1] >= 0).all() and (inputs["start"][:, 1] == 0).all()
