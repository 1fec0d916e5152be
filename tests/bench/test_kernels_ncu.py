"""The profile of production kernels: what it launches, how a row of ncu becomes an entry and a line of the page."""

from __future__ import annotations

import click
import pytest

import hgemm_ops
from benchmarks import kernels_ncu, result_page

ROW = {
    "Kernel Name": "kernel",
    "gpu__time_duration.sum": "200,000",
    "sm__cycles_elapsed.max": "300,000",
    "sm__cycles_elapsed.avg.per_second": "1,500,000,000",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "91.5",
    "lts__t_bytes.sum": "1,000,000,000",
    "dram__bytes.sum": "200,000,000",
    "launch__registers_per_thread": "168",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "4.25",
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": "1.0",
}


def test_every_case_has_torch_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {v.name for v in hgemm_ops.variants()}
    if not known:
        pytest.skip("no native library")
    assert known >= set(kernels_ncu.KERNELS)
    monkeypatch.setattr(hgemm_ops, "explain", lambda explain=hgemm_ops.explain, **q: explain(**q, arch="sm_90"))
    launches = kernels_ncu.launches()
    for case in kernels_ncu.CASES:
        names = [name for launched, name in launches if launched == case]
        assert names[0] == kernels_ncu.TORCH and len(names) >= 5


def test_a_row_becomes_an_entry_and_a_line() -> None:
    case = kernels_ncu.CASES[0]
    entry = kernels_ncu.entry(case, kernels_ncu.TORCH, [ROW])
    assert entry["tflops"] == pytest.approx(case.flops / 200e-6 / 1e12)
    assert (entry["cycles"], entry["clock_hz"], entry["stalls"]) == (300e3, 1.5e9, {"long_scoreboard": 4.25})
    facts = {"date": "2025-01-31", "csrc": "0123456789", "gpu": "G", "driver": "1", "cuda": "13.0", "torch": "2.11"}
    text = "\n".join(result_page.profile_section({"environment": facts, "ncu": [entry]}))
    assert f"| {case.label} | torch (kernel) | 200 | " in text
    assert "| 300 | 1.500 | 91.5 | 1000 | 200 | long scoreboard 4.2 |" in text


def test_kernels_of_torch_that_share_a_product_are_summed() -> None:
    case = kernels_ncu.CASES[0]
    ours = {"Kernel Name": "void sm90_skinny::kernel<sm90_skinny::Traits<...>>(sm90_skinny::Params)"}
    short = {
        **ROW,
        "Kernel Name": "splitKreduce",
        "gpu__time_duration.sum": "100,000",
        "sm__cycles_elapsed.max": "100,000",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "0",
        "launch__registers_per_thread": "32",
    }
    launched = [(case, kernels_ncu.TORCH), (case, "skinny_wgmma_64x8"), (case, kernels_ncu.TORCH)]
    groups = kernels_ncu.grouped(launched, [ROW, short, ours, ROW])
    assert groups == [[ROW, short], [ours], [ROW]]
    entry = kernels_ncu.entry(case, kernels_ncu.TORCH, groups[0])
    assert (entry["kernel"], entry["ns"], entry["cycles"], entry["l2_bytes"]) == (
        "kernel + splitKreduce",
        3e5,
        4e5,
        2e9,
    )
    assert (entry["registers"], entry["tensor_pct"]) == (168, pytest.approx(91.5 * 0.75))
    for rows in ([ours, ROW], [ROW, ours], [ROW, ours, ROW, ours]):
        with pytest.raises(click.ClickException, match="ncu saw"):
            kernels_ncu.grouped(launched, rows)
