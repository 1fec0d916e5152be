"""numerics="batch_invariant" on a GPU, bit by bit: kernels of one class, rows alone and in company, a whole model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, ON_GPU, calls
from torch import Tensor, nn

import hgemm_ops
from hgemm_ops import use_custom_gemm

pytestmark = pytest.mark.gpu

hgemm = torch.ops.hgemm
MODE = "batch_invariant"
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
#: float32 has kernels of a class where it may be split.
EVERY = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
#: Takes every layout, alignment and epilogue, on every architecture.
REFERENCE = "sm80_mma_64x64x64_w32x32_s3"
#: The same for float32 results.
CARRIED = "sm80_mma_64x64x32_w32x32_s4_carried"


def assert_same_bits(got: Tensor, expected: Tensor, what: object = "") -> None:
    __tracebackhide__ = True
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if not ON_GPU:
        return
    wide = torch.int32 if got.dtype == torch.float32 else torch.int16
    differ = got.contiguous().view(wide) != expected.contiguous().view(wide)
    if bool(differ.any()):
        at = tuple(int(i) for i in differ.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(differ.sum())} of {differ.numel()} elements differ, first at {at}: {got[at].item()!r}, "
            f"not {expected[at].item()!r}"
        )


def rows(m: int, k: int, dtype: torch.dtype) -> Tensor:
    """Random ones, and among the first eight zeros of both signs, NaN, infinities, very small and very large ones."""
    x = torch.randn(m, k, device=DEVICE).to(dtype)
    for row, values in {1: 0.0, 2: -0.0, 4: 1e-7, 5: 3e4}.items():
        if row < m:
            x[row] = values
    if m > 6:
        x[3, k // 2], x[6, 0] = float("nan"), float("inf")
    return x


def stored(x: Tensor, how: str) -> Tensor:
    """The same matrix row by row, column by column, or with rows that start anywhere."""
    if how == "N":
        return x.contiguous()
    if how == "T":
        return x.t().contiguous().t()
    m, k = x.shape
    buffer = torch.empty(m * (k + 3) + 1, dtype=x.dtype, device=x.device)[1:]
    odd = buffer.view(m, k + 3)[:, :k]
    return odd.copy_(x)


def invariant() -> use_custom_gemm:
    return use_custom_gemm(numerics=MODE, float32="split")


def kernels(a: Tensor, b: Tensor, **epilogue: object) -> list[str]:
    """Those of the class that serve a product."""
    if not ON_GPU:
        return ["torch"]
    options = {"numerics": MODE, "float32": "split"} | epilogue
    candidates = hgemm_ops.explain(a, b, **options).candidates  # type: ignore[arg-type]
    return [c.name for c in candidates if c.eligible]


def mode(kernel: str) -> str | None:
    return MODE if kernel != "torch" else None


def in_slices(x: Tensor, w: Tensor) -> Tensor:
    """x @ w as the sum of four slices of K: quarters of its steps of 128 k, each with one accumulator."""
    k, steps = x.shape[1], -(-x.shape[1] // 128)
    ends = [min(steps * i // 4 * 128, k) for i in range(5)]
    parts = [
        hgemm_ops.matmul(x[:, i:j], w[i:j], variant=REFERENCE if ON_GPU else None, out_dtype=torch.float32)
        for i, j in itertools.pairwise(ends)
    ]
    return (((parts[0] + parts[1]) + parts[2]) + parts[3]).to(x.dtype)


# ---- kernels of one class -------------------------------------------------------------------------

# N, K, and the largest M; wide C for edged kernels.
SHAPES = [
    (17000, 72, 1024),
    (4096, 328, 4096),
    (4096, 131, 4096),
    (136, 3064, 16384),
    (333, 1031, 1000),
    (16, 2048, 16384),
    (1, 515, 999),
    (4099, 2051, 200),
    (1281, 4104, 70),
]


@EVERY
@pytest.mark.parametrize(("n", "k", "most"), SHAPES)
def test_kernels_of_the_class_agree(dtype: torch.dtype, n: int, k: int, most: int) -> None:
    x, w = rows(most, k, dtype), torch.randn(k, n, device=DEVICE).to(dtype)
    reference = REFERENCE if dtype != torch.float32 else kernels(x, w)[0]
    numerics = mode(reference) if dtype == torch.float32 else None  # planes have slices of K in fast numerics
    expected = hgemm_ops.matmul(x, w, variant=reference if ON_GPU else None, numerics=numerics)
    seen = set()
    for order_x, order_w in (*itertools.product("NT", repeat=2), ("odd", "N"), ("N", "odd")):
        a, b = stored(x, order_x), stored(w, order_w)
        for m in sorted({m for m in (1, 8, 24, 64, 200, 4096) if m < most} | {most}):
            for kernel in kernels(a[:m], b):
                seen.add(kernel)
                got = hgemm_ops.matmul(a[:m], b, variant=kernel, numerics=mode(kernel))
                assert_same_bits(got, expected[:m], f"{kernel} {order_x}{order_w} {m}x{n}x{k}")
    assert not ON_GPU or reference in seen


@HALF
@pytest.mark.parametrize(
    ("n", "k", "most"),
    [(1280, 3072, 16384), (2048, 6152, 600), (136, 4104, 2000), (1025, 3333, 600), (67, 8191, 300), (1, 4097, 600)],
)
def test_kernels_with_sums_in_slices_agree(dtype: torch.dtype, n: int, k: int, most: int) -> None:
    x, w = rows(most, k, dtype), torch.randn(k, n, device=DEVICE).to(dtype)
    expected = in_slices(x, w)
    seen = set()
    for order_x, order_w in (*itertools.product("NT", repeat=2), ("odd", "N"), ("N", "odd")):
        a, b = stored(x, order_x), stored(w, order_w)
        for m in sorted({m for m in (1, 2, 7, 8, 16, 33, 64, 65, 200, 513) if m < most} | {most}):
            assert_same_bits(hgemm_ops.matmul(a[:m], b, numerics=MODE), expected[:m], f"{m}x{n}x{k}")
            for kernel in kernels(a[:m], b):
                seen.add(kernel)
                got = hgemm_ops.matmul(a[:m], b, variant=kernel, numerics=mode(kernel))
                assert_same_bits(got, expected[:m], f"{kernel} {order_x}{order_w} {m}x{n}x{k}")
    if ON_GPU and torch.cuda.get_device_capability() == (9, 0):
        assert {"sm80_mma_64x64x32_w32x32_s4_carried", "sm80_mma_16x128x64_w16x32_s4_splitk"} <= seen
        assert any("c1x1x4" in name for name in seen) and any("wgmma" in name and "carried" in name for name in seen)
        assert "skinny_mma_in_order_16x8" in seen and (k % 8 != 0 or "skinny_wgmma_64x64" in seen)
        assert any("_sliced" in name for name in seen)
        assert k % 8 != 0 or n <= 64 or "skinny_wgmma_64x64_tiled" in seen


@HALF
@pytest.mark.parametrize(
    ("n", "k", "most"),
    [(512, 129, 512), (64, 300, 512), (256, 2049, 700), (264, 5000, 512), (67, 8191, 130), (1, 4100, 64)],
)
def test_kernels_with_carried_sums_agree(dtype: torch.dtype, n: int, k: int, most: int) -> None:
    x, w = rows(most, k, dtype), torch.randn(k, n, device=DEVICE).to(dtype)
    wide = {"out_dtype": torch.float32}
    parts = [
        hgemm_ops.matmul(x[:, i : i + 128], w[i : i + 128], variant=REFERENCE if ON_GPU else None, **wide)
        for i in range(0, k, 128)
    ]
    expected = torch.zeros_like(parts[0])
    for part in parts:
        expected += part
    seen = set()
    for order_x, order_w in (*itertools.product("NT", repeat=2), ("odd", "N"), ("N", "odd")):
        a, b = stored(x, order_x), stored(w, order_w)
        for m in sorted({m for m in (1, 7, 24, 64, 200) if m < most} | {most}):
            assert_same_bits(hgemm_ops.matmul(a[:m], b, numerics=MODE, **wide), expected[:m], f"{m}x{n}x{k}")
            for kernel in kernels(a[:m], b, **wide):
                seen.add(kernel)
                got = hgemm_ops.matmul(a[:m], b, variant=kernel, numerics=mode(kernel), **wide)
                assert_same_bits(got, expected[:m], f"{kernel} {order_x}{order_w} {m}x{n}x{k}")
    assert not ON_GPU or {CARRIED, "sm80_mma_16x128x64_w16x32_s4_carried_slices"} <= seen


@pytest.mark.skipif(not ON_GPU, reason="nothing is ours there")
@HALF
@pytest.mark.parametrize("m", [1, 7, 64, 512])
@pytest.mark.parametrize("k", [2049, 4100, 8192, 65536])
def test_errors_of_float32_results_are_at_most_twice_torchs(dtype: torch.dtype, k: int, m: int) -> None:
    a, b = torch.randn(m, k, device=DEVICE).to(dtype), torch.randn(k, 512, device=DEVICE).to(dtype)
    exact = a.double() @ b.double()

    def error(out: Tensor) -> float:
        return (out.double() - exact).square().mean().sqrt().item()

    ours = error(hgemm_ops.matmul(a, b, numerics=MODE, out_dtype=torch.float32))
    torchs = error(torch.mm(a, b, out_dtype=torch.float32))
    assert 0 < ours <= 2 * torchs, (ours, torchs)


@HALF
@pytest.mark.parametrize("name", [v.name for v in hgemm_ops.variants() if v.sums.endswith("slices")])
def test_slices_of_k_do_not_depend_on_the_rows(dtype: torch.dtype, name: str) -> None:
    n, k = 264, 1032 if "_pad" not in name else 1031
    x, w = rows(4096, k, dtype), torch.randn(k, n, device=DEVICE).to(dtype)

    def served(a: Tensor) -> bool:
        return any(c.eligible and c.name == name for c in hgemm_ops.explain(a, w).candidates)

    if not served(x):
        pytest.skip("does not run here")
    expected = hgemm_ops.matmul(x, w, variant=name)
    counts = [m for m in (1, 8, 65, 130, 1000) if served(x[:m])]  # a single row may need no padding
    assert len(counts) >= 4
    for m in counts:
        assert_same_bits(hgemm_ops.matmul(x[:m], w, variant=name), expected[:m], m)
        assert_same_bits(hgemm_ops.matmul(x[-m:], w, variant=name), expected[-m:], -m)


@HALF
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
def test_epilogues_agree(dtype: torch.dtype, activation: str, out_dtype: torch.dtype | None) -> None:
    for n, k, order in ((4096, 72, "N"), (264, 520, "T"), (67, 131, "odd"), (67, 515, "odd"), (264, 3080, "T")):
        x, w = rows(1000, k, dtype), stored(torch.randn(n, k, device=DEVICE).to(dtype), order)
        for bias in (None, torch.randn(n, device=DEVICE).to(dtype)):
            expected = hgemm_ops.linear(x, w, bias, activation=activation, out_dtype=out_dtype, numerics=MODE)
            options = {"activation": activation, "out_dtype": out_dtype}
            for m in (1, 16, 64, 300, 1000):
                for kernel in kernels(x[:m], w.t(), bias=bias is not None, **options):
                    got = hgemm_ops.linear(x[:m], w, bias, variant=kernel, numerics=mode(kernel), **options)
                    assert_same_bits(got, expected[:m], f"{kernel} {m}x{n}x{k} bias {bias is not None}")


@HALF
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.7), (-1.0, 0.3), (-1.0, 0.0)])
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
def test_scaled_sums_agree(dtype: torch.dtype, alpha: float, beta: float, out_dtype: torch.dtype | None) -> None:
    for n, k in ((256, 520), (67, 131)):
        options = {"beta": beta, "alpha": alpha, "out_dtype": out_dtype, "numerics": 1}
        sums = "carried" if out_dtype is not None and k > 128 else "in order"
        x, w = rows(1000, k, dtype), torch.randn(k, n, device=DEVICE).to(dtype)
        for c in (torch.randn(1000, n, device=DEVICE).to(dtype), torch.randn(n, device=DEVICE).to(dtype)):
            expected = hgemm.addmm(c, x, w, **options)
            for m in (1, 16, 64, 300):
                part = c[:m] if c.dim() == 2 else c
                assert_same_bits(hgemm.addmm(part, x[:m], w, **options), expected[:m], m)
                for v in hgemm_ops.variants() if ON_GPU else ():
                    if v.sums != sums:
                        continue
                    try:
                        got = hgemm.addmm(part, x[:m], w, variant=v.id, **options)
                    except RuntimeError as refused:
                        assert "does not support" in str(refused)
                        continue
                    assert_same_bits(got, expected[:m], f"{v.name} {m}x{n}x{k} C {tuple(part.shape)}")


# ---- rows alone and in company --------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(("n", "k"), [(1024, 4096), (4096, 1024), (4097, 515), (1, 4096)])
def test_a_row_does_not_depend_on_its_company(dtype: torch.dtype, n: int, k: int) -> None:
    x, w = torch.randn(32, k, device=DEVICE).to(dtype), torch.randn(n, k, device=DEVICE).to(dtype)
    bias = torch.randn(n, device=DEVICE).to(dtype)
    with invariant() as report:
        alone = [F.linear(row[None], w, bias)[0] for row in x]
        plain = [row[None] @ w.t() for row in x]
        for size in (2, 7, 32):
            for order in ("N", "T", "odd"):
                batch = stored(x[:size], order)
                assert_same_bits(F.linear(batch, w, bias), torch.stack(alone[:size]), (size, order))
                assert_same_bits(batch @ stored(w, order).t(), torch.cat(plain[:size]), (size, order))
        poisoned = x.clone()
        poisoned[1::2] = float("nan")
        poisoned[2::4] = float("inf")
        assert_same_bits(F.linear(poisoned, w, bias)[::4], torch.stack(alone[::4]), "neighbours of NaN and infinity")
        longer = torch.zeros(4, 500, k, dtype=dtype, device=DEVICE)
        longer[2, 3:35] = x
        assert_same_bits(F.linear(longer, w, bias)[2, 3:35], torch.stack(alone), "padded")
        for i in (0, 31):
            assert_same_bits(torch.addmv(bias, w, x[i]), alone[i], "addmv")
            assert_same_bits(torch.mv(w, x[i]), plain[i][0], "mv")
            assert_same_bits(F.linear(x[i], w), plain[i][0], "a vector")
        if n == 1:
            assert_same_bits(torch.dot(x[0], w[0]), plain[0][0, 0], "dot")
    assert calls(report, "torch") == 0, report


@HALF
@pytest.mark.parametrize(("n", "k"), [(1280, 4096), (1600, 4096), (1600, 6144), (1031, 3001), (4099, 2049)])
def test_rows_and_vectors_whatever_their_number(dtype: torch.dtype, n: int, k: int) -> None:
    x, w = torch.randn(9000, k, device=DEVICE).to(dtype), torch.randn(n, k, device=DEVICE).to(dtype)
    bias = torch.randn(n, device=DEVICE).to(dtype)
    with use_custom_gemm(numerics=MODE) as report:
        every, column = F.linear(x, w, bias), x @ w[0]
        for m in (1, 2, 7, 8, 9, 16, 33, 64, 65, 200, 513, 1288, 2100, 8200):
            assert_same_bits(F.linear(x[:m], w, bias), every[:m], m)
            assert_same_bits(F.linear(x[-m:], w, bias), every[-m:], -m)
            assert_same_bits(x[-m:] @ w[0], column[-m:], ("a vector", m))
        assert_same_bits(F.linear(x[5], w, bias), every[5], "alone")
    assert calls(report, "torch") == 0, report


@EVERY
def test_a_million_rows(dtype: torch.dtype) -> None:
    """Random numbers of rows, at random places, of which one in a hundred has NaN or infinities."""
    draw, most = random.Random(0), 16384
    weights = [(n, k, how) for n, k in ((768, 1024), (96, 2056), (515, 301)) for how in ("N", "T")]
    compared = 0
    with invariant() as report:
        for n, k, how in weights:
            x, w = rows(most, k, dtype), stored(torch.randn(k, n, device=DEVICE).to(dtype), how)
            special = draw.choice((float("nan"), float("inf")))
            x[torch.randperm(most, device=DEVICE)[: most // 100], draw.randrange(k)] = special
            expected = x @ w
            while compared < 500_000 * (weights.index((n, k, how)) + 1) / len(weights):
                m = int(most ** draw.random())
                taken = torch.randperm(most, device=DEVICE)[:m]
                got = stored(x[taken], draw.choice(("N", "T", "odd"))) @ w
                assert_same_bits(got, expected[taken], f"{m}x{n}x{k} {how}")
                compared += m
    assert calls(report, "torch") == 0, report


@EVERY
@pytest.mark.parametrize(("m", "n", "k"), [(1, 128, 64), (16, 16, 64), (37, 65, 70), (200, 128, 128), (1, 1, 4096)])
def test_a_product_does_not_depend_on_its_batch(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    a, b = (torch.randn(300, *size, device=DEVICE).to(dtype) for size in ((m, k), (k, n)))
    heads = b.mT.contiguous().mT  # stored the other way round
    with invariant() as report:
        every = torch.bmm(a, b)
        for i in (0, 150, 299):
            assert_same_bits(a[i] @ b[i], every[i], "mm")
        for size in (1, 2, 7, 64):
            assert_same_bits(torch.bmm(a[-size:], b[-size:]), every[-size:], size)
            assert_same_bits(torch.bmm(a[:size], heads[:size]), every[:size], size)
            scaled = torch.baddbmm(every[:size], a[:size], b[:size], alpha=0.125)
            assert_same_bits(scaled[:1], torch.baddbmm(every[:1], a[:1], b[:1], alpha=0.125), size)
        assert_same_bits(torch.matmul(a, b[7]), torch.stack([x @ b[7] for x in a]), "broadcast")
    assert calls(report, "torch") == 0, report


@EVERY
def test_gradients_of_a_row_do_not_depend_on_its_company(dtype: torch.dtype) -> None:
    x, w, g = (torch.randn(size, device=DEVICE).to(dtype) for size in ((64, 520), (1032, 520), (64, 1032)))

    def gradient(linear: Callable[[Tensor], Tensor], some: slice) -> Tensor:
        leaf = x[some].clone().requires_grad_()
        linear(leaf).backward(g[some])
        assert leaf.grad is not None
        return leaf.grad

    def by_argument(leaf: Tensor) -> Tensor:
        return hgemm_ops.linear(leaf, w, numerics=MODE, float32="split")

    every = gradient(by_argument, slice(None))
    with invariant() as report:
        assert_same_bits(gradient(lambda leaf: F.linear(leaf, w), slice(None)), every, "context")
        for some in (slice(0, 1), slice(63, 64), slice(5, 12)):
            assert_same_bits(gradient(lambda leaf: F.linear(leaf, w), some), every[some], some)
    for some in (slice(0, 1), slice(5, 12)):
        assert_same_bits(gradient(by_argument, some), every[some], some)
    assert calls(report, "torch") == 0, report


@HALF
def test_gated_rows(dtype: torch.dtype) -> None:
    x, w = rows(200, 1024, dtype), torch.randn(2048, 1024, device=DEVICE).to(dtype)
    every = hgemm.linear_gated(x, w, 4, numerics=1)
    for m in (1, 8, 64, 65):
        assert_same_bits(hgemm.linear_gated(x[:m], w, 4, numerics=1), every[:m], m)


# ---- what is not possible -------------------------------------------------------------------------


@pytest.mark.skipif(not ON_GPU, reason="nothing is ours there")
def test_what_torch_would_serve_raises() -> None:
    a = torch.randn(64, 64, device=DEVICE).half()
    wide = torch.empty(64, 128, device=DEVICE).half()
    with use_custom_gemm(numerics=MODE) as report:
        for refused in (
            lambda: torch.mm(a, a, out=wide[:, :64]),
            lambda: torch.mm(a, a, out=a),
            lambda: torch.addmm(a, a, a, alpha=0),
            lambda: torch._addmm_activation(a[0], a, a, use_gelu=True),
        ):
            with pytest.raises(RuntimeError, match=r"batch_invariant.* is not possible for float16"):
                refused()
        a.float() @ a.float()
        assert torch.equal(a[:, :0] @ a[:0], torch.zeros_like(a))  # nothing to multiply
    reasons = {row.dtype: row.reason for row in report.rows if row.variant == "torch"}
    assert "not batch-invariant" in reasons["float32"]
    with use_custom_gemm(numerics=MODE + "_or_raise"), pytest.raises(RuntimeError, match="is not possible for float32"):
        a.float() @ a.float()
    with invariant(), pytest.raises(RuntimeError, match="is not possible for float32"):
        torch.mm(a.float(), a.float(), out=wide.float()[:, :64])
    with use_custom_gemm(numerics=MODE, variant="torch"), pytest.raises(RuntimeError, match="torch was requested"):
        a @ a
    with pytest.raises(RuntimeError, match="is not possible for float32"):
        hgemm_ops.matmul(a.float(), a.float(), numerics=MODE + "_or_raise")
    with pytest.raises(RuntimeError, match="numerics is not possible where torch computes"):
        torch.func.vmap(lambda row: hgemm_ops.matmul(row, a, numerics=MODE))(a)


# ---- end to end -----------------------------------------------------------------------------------


class Llama(nn.Module):
    """Llama's shape with random weights. Products see the batch as it is; norms are computed by the token and attention
    by the sequence, without its padding, which is how a model has to do its part of the promise."""

    def __init__(self, hidden: int = 512, heads: int = 8, kv_heads: int = 2, inner: int = 1408) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        narrow = self.size * kv_heads
        sizes = {"q": (hidden, hidden), "k": (hidden, narrow), "v": (hidden, narrow), "o": (hidden, hidden)}
        sizes |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
        self.embed = nn.Embedding(1003, hidden)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()}) for _ in range(2)
        )
        self.head = nn.Linear(hidden, 1003, bias=False)

    def norm(self, x: Tensor) -> Tensor:
        return torch.stack([torch.stack([F.rms_norm(token, token.shape) for token in sequence]) for sequence in x])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
        result = torch.zeros_like(q)
        for i, length in enumerate(lengths):
            one = [
                t[i, :length].view(1, length, heads, self.size).transpose(1, 2)
                for t, heads in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
            ]
            repeats = self.heads // self.kv_heads
            one[1:] = [t.repeat_interleave(repeats, 1) for t in one[1:]]
            scores = (one[0] @ one[1].mT).float() / self.size**0.5
            causal = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            weights = scores.masked_fill(causal, float("-inf")).softmax(-1).to(q.dtype)
            result[i, :length] = (weights @ one[2]).transpose(1, 2).reshape(length, -1)
        return result

    def forward(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            y = self.norm(x)
            x = x + layer["o"](self.attend(layer["q"](y), layer["k"](y), layer["v"](y), lengths))
            y = self.norm(x)
            x = x + layer["down"](F.silu(layer["gate"](y)) * layer["up"](y))
        return self.head(self.norm(x))


@EVERY
def test_logits_of_a_prompt_are_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    model = Llama().to(DEVICE, dtype)
    prompt = torch.randint(1003, (11,), device=DEVICE)
    with torch.no_grad(), invariant() as report:
        alone = model(prompt[None], [11])[0]
        for batch, length, place in ((2, 11, 1), (7, 17, 3), (32, 23, 31), (1, 40, 0)):  # longer ones: padded
            tokens = torch.randint(1003, (batch, length), device=DEVICE)
            lengths = [random.randint(1, length) for _ in range(batch)]
            tokens[place, :11], lengths[place] = prompt, 11
            assert_same_bits(model(tokens, lengths)[place, :11], alone, (batch, length))
    assert calls(report, "torch") == 0, report
    assert not ON_GPU or calls(report, "ours") > 0
