"""Scientific networks in float32, written after the architectures of papers: random weights, random inputs.

A network has ``residuals(**inputs)``, tensors that training makes small, and ``sample`` makes such inputs. Everything
that is no function of the parameters is an input, also the embeddings of times. A float64 copy of network and inputs is
then the same function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = dict[str, Tensor]


class Residual(nn.Module):
    """Two convolutions with group norm and SiLU. The embedding of the time is added between them."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, out)])
        self.convolutions = nn.ModuleList([nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)])
        self.time = nn.Linear(time, out)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convolutions[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.convolutions[1](F.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Attention with one head over the pixels. Its projections are matmuls over the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.projections = nn.ModuleList([nn.Linear(channels, channels) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (project(pixels) for project in self.projections[:3])
        weights = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return x + self.projections[3](weights @ v).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """The U-Net of Ho et al., "Denoising Diffusion Probabilistic Models", 2020, without dropout.

    ``attention``: the resolutions that have attention. The default sizes are those for CIFAR-10.
    """

    def __init__(
        self,
        size: int = 32,
        channels: int = 128,
        multipliers: tuple[int, ...] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: tuple[int, ...] = (16,),
        batch: int = 128,
    ) -> None:
        super().__init__()
        self.shape = batch, 3, size, size
        self.channels = channels
        time = 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))

        def block(channels: int, out: int, size: int) -> nn.ModuleList:
            return nn.ModuleList([Residual(channels, out, time), *([Attention(out)] if size in attention else [])])

        now = channels
        self.down = nn.ModuleList([nn.Conv2d(3, now, 3, padding=1)])
        kept = [now]
        for level, multiplier in enumerate(multipliers):
            if level:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                kept.append(now)
                size //= 2
            for _ in range(blocks):
                self.down.append(block(now, channels * multiplier, size))
                now = channels * multiplier
                kept.append(now)
        self.middle = nn.ModuleList([Residual(now, now, time), Attention(now), Residual(now, now, time)])
        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(multipliers))):
            for _ in range(blocks + 1):
                self.up.append(block(now + kept.pop(), channels * multiplier, size))
                now = channels * multiplier
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(now, now, 3, padding=1)))
                size *= 2
        self.last = nn.Sequential(nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Returns the noise in the images ``x`` (batch, 3, size, size). ``times`` (batch, channels) are embedded."""
        time = self.time(times)

        def run(block: nn.Module, x: Tensor) -> Tensor:
            if not isinstance(block, nn.ModuleList):
                return block(x)
            for layer in block:
                x = layer(x, time) if isinstance(layer, Residual) else layer(x)
            return x

        kept = []
        for block in self.down:
            x = run(block, x)
            kept.append(x)
        x = run(self.middle, x)
        for block in self.up:
            x = run(block, torch.cat([x, kept.pop()], 1) if isinstance(block, nn.ModuleList) else x)
        return self.last(x)

    def sample(self, generator: torch.Generator) -> Inputs:
        """Returns images with noise, as diffusion after random times adds it."""
        device = generator.device
        images, noise = (torch.randn(self.shape, generator=generator, device=device) for _ in range(2))
        times = torch.randint(1000, self.shape[:1], generator=generator, device=device)
        kept = (1 - torch.linspace(1e-4, 0.02, 1000, device=device)).cumprod(0)[times][:, None, None, None]
        half = self.channels // 2
        frequencies = torch.exp(torch.arange(half, device=device) * (-math.log(10000) / (half - 1)))
        angles = times[:, None] * frequencies
        return {
            "noisy": kept.sqrt() * images + (1 - kept).sqrt() * noise,
            "noise": noise,
            "times": torch.cat([angles.sin(), angles.cos()], 1),
        }

    def residuals(self, noisy: Tensor, noise: Tensor, times: Tensor) -> list[Tensor]:
        return [self(noisy, times) - noise]


class MeshGraphNet(nn.Module):
    """The network of Pfaff et al., "Learning Mesh-Based Simulation with Graph Networks", 2021, for a flow.

    Its MLPs have two hidden layers. Each of ``steps`` updates the edges from their ends, and then the nodes from the
    sum of their edges. The graph is random and no mesh, and the numbers of its nodes and edges are not the paper's.
    SiLU takes the place of ReLU: where an input of ReLU is nearly zero, rounding alone decides whether it has a
    gradient, so that errors of gradients would be a matter of chance.
    """

    def __init__(self, nodes: int = 8192, edges: int = 49152, width: int = 128, steps: int = 15) -> None:
        super().__init__()
        self.nodes, self.edges = nodes, edges

        def mlp(inputs: int) -> nn.Sequential:
            hidden = (nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width))
            return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), *hidden)

        self.encoders = nn.ModuleList([mlp(11), mlp(3)])  # a node has a velocity and one of nine types
        self.edge_steps = nn.ModuleList([mlp(3 * width) for _ in range(steps)])
        self.node_steps = nn.ModuleList([mlp(2 * width) for _ in range(steps)])
        self.decoder = nn.Sequential(*mlp(width)[:-2], nn.Linear(width, 2))

    def forward(self, nodes: Tensor, edges: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        """Returns the change of the velocity at each node. ``nodes`` (N, 11); ``edges`` (E, 3); their ends (E,)."""
        x, e = self.encoders[0](nodes), self.encoders[1](edges)
        for edge_step, node_step in zip(self.edge_steps, self.node_steps, strict=True):
            e = e + edge_step(torch.cat([e, x.index_select(0, senders), x.index_select(0, receivers)], 1))
            x = x + node_step(torch.cat([x, torch.zeros_like(x).index_add(0, receivers, e)], 1))
        return self.decoder(x)

    def sample(self, generator: torch.Generator) -> Inputs:
        device = generator.device

        def ends() -> Tensor:
            return torch.randint(self.nodes, (self.edges,), generator=generator, device=device)

        senders, receivers = ends(), ends()
        velocity, changes, places = (torch.randn(self.nodes, 2, generator=generator, device=device) for _ in range(3))
        kinds = F.one_hot(torch.randint(9, (self.nodes,), generator=generator, device=device), 9)
        way = places[senders] - places[receivers]
        return {
            "nodes": torch.cat([velocity, kinds], 1),
            "edges": torch.cat([way, way.norm(dim=1, keepdim=True)], 1),
            "senders": senders,
            "receivers": receivers,
            "changes": changes,
        }

    def residuals(self, changes: Tensor, **graph: Tensor) -> list[Tensor]:
        return [self(**graph) - changes]


class PhysicsInformed(nn.Module):
    """The MLP of Raissi et al., "Physics-informed neural networks", 2019, for Burgers' equation.

    The derivatives in the equation are gradients of the MLP. So a training step takes gradients of gradients.
    """

    def __init__(self, points: int = 10_000, width: int = 20, layers: int = 8, known: int = 100) -> None:
        super().__init__()
        self.points, self.known = points, known
        widths = [2, *[width] * layers]
        hidden = [m for k, n in itertools.pairwise(widths) for m in (nn.Linear(k, n), nn.Tanh())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 1))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, points: Tensor) -> Tensor:
        """Returns the solution at ``points`` (P, 2), of which each is a place and a time."""
        return self.layers(points)

    def sample(self, generator: torch.Generator) -> Inputs:
        """Returns points where the equation has to hold, and points of the initial wave with its values."""

        def uniform(count: int) -> Tensor:
            return torch.rand(count, 1, generator=generator, device=generator.device)

        points = torch.cat([2 * uniform(self.points) - 1, uniform(self.points)], 1)
        places = 2 * uniform(self.known) - 1
        start = torch.cat([places, torch.zeros_like(places)], 1)
        return {"points": points, "start": start, "values": -torch.sin(math.pi * places)}

    def residuals(self, points: Tensor, start: Tensor, values: Tensor) -> list[Tensor]:
        points = points.detach().requires_grad_()
        u = self(points)
        (du,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        u_x, u_t = du[:, :1], du[:, 1:]
        (du_x,) = torch.autograd.grad(u_x.sum(), points, create_graph=True)
        return [u_t + u * u_x - 0.01 / math.pi * du_x[:, :1], self(start) - values]


@dataclass(frozen=True)
class Network:
    """A class of networks, and its arguments by size. A real size is that of the paper, but for the arguments given."""

    network: Callable[..., Any]
    sizes: Mapping[str, Mapping[str, Any]]


NETWORKS = {
    "mesh_graph_net": Network(MeshGraphNet, {"tiny": {"nodes": 50, "edges": 301, "width": 24, "steps": 2}, "real": {}}),
    "pinn": Network(PhysicsInformed, {"tiny": {"points": 60, "width": 10, "layers": 3, "known": 7}, "real": {}}),
    # A common size of later papers.
    "pinn_4x128": Network(
        PhysicsInformed,
        {"tiny": {"points": 60, "width": 10, "layers": 3, "known": 7}, "real": {"width": 128, "layers": 4}},
    ),
    # The last one, because it needs the most memory and time: should it fail, the others have results.
    "unet": Network(
        UNet, {"tiny": {"size": 8, "channels": 32, "multipliers": (1, 2), "attention": (4,), "batch": 2}, "real": {}}
    ),
}


def build(name: str, size: str, device: torch.device, seed: int = 0) -> Any:
    """Returns the network ``name`` at ``size``, in float32 with random weights."""
    found = NETWORKS[name]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with device:
            return found.network(**found.sizes[size])


def loss(residuals: Sequence[Tensor]) -> Tensor:
    return torch.stack([residual.square().mean() for residual in residuals]).sum()


def sample(network: Any, device: torch.device, seed: int = 1) -> Inputs:
    return network.sample(torch.Generator(device).manual_seed(seed))
