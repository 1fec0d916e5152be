"""``hgemm explain M N K``: lists every kernel, why it is or is not eligible, and the choice with its source."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

import click

import hgemm_ops
from hgemm_ops import _native
from hgemm_ops.ops.activation import ACTIVATIONS

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _native.DTYPES}
_DTYPE = click.Choice(list(_DTYPES))


def _known_arch(context: click.Context, parameter: click.Parameter, arch: str | None) -> str | None:
    known = [f"sm_{cc}" for cc in _native.chips()]  # not a click.Choice: asking for them loads the library
    if arch is not None and known and arch not in known:
        raise click.BadParameter(f"{arch!r} is not one of {', '.join(known)}.", context, parameter)
    return arch


@click.command()
@click.argument("m", type=click.IntRange(min=0))
@click.argument("n", type=click.IntRange(min=0))
@click.argument("k", type=click.IntRange(min=0))
@click.option("--dtype", type=_DTYPE, default="float16", show_default=True)
@click.option(
    "--layout",
    type=click.Choice(["NN", "NT", "TN", "TT"]),
    default="NN",
    show_default=True,
    help="Storage of A and B, N as it is, T transposed. NT is a linear layer.",
)
@click.option("--batch", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--groups", type=click.IntRange(min=1), help="Explain a grouped matmul: M rows in groups, a B for each.")
@click.option(
    "--alignment",
    type=click.Choice(["2", "4", "8", "16"]),
    default="16",
    show_default=True,
    help="Of the addresses of A and B, in bytes.",
)
@click.option("--arch", metavar="sm_NN", callback=_known_arch, help="Default: this GPU, or sm_90.")
@click.option("--activation", type=click.Choice(ACTIVATIONS))
@click.option("--bias", is_flag=True, help="Add a bias vector.")
@click.option("--out-dtype", type=_DTYPE)
@click.option("--variant", help="Force a kernel.")
@click.option("--numerics", type=click.Choice(_native.NUMERICS), help="Default: HGEMM_OPS_NUMERICS, or fast.")
@click.option("--float32", type=click.Choice(_native.FLOAT32), help="Default: HGEMM_OPS_FLOAT32, or strict.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Also list the kernels that cannot run it, with reasons, and those that run only when forced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    m: int,
    n: int,
    k: int,
    dtype: str,
    layout: str,
    batch: int,
    groups: int | None,
    alignment: str,
    arch: str | None,
    activation: str | None,
    bias: bool,
    out_dtype: str | None,
    variant: str | None,
    numerics: str | None,
    float32: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """Explain which kernel an (M, K) @ (K, N) matmul gets, and why. Needs no GPU."""
    explain_product: Callable[..., hgemm_ops.Explanation] = functools.partial(
        hgemm_ops.explain,
        batch=batch,
        alignment=int(alignment),
        activation=activation,
        bias=bias,
        out_dtype=_DTYPES[out_dtype] if out_dtype else None,
        variant=variant,
    )
    if groups is not None:
        if batch != 1 or int(alignment) != 16 or activation or bias or out_dtype or variant:
            raise click.UsageError(
                "--groups takes none of --batch, --alignment, --activation, --bias, --out-dtype, --variant."
            )
        explain_product = functools.partial(hgemm_ops.explain_grouped, groups=groups)
    try:
        explanation = explain_product(
            **{"M" if groups is None else "rows": m},
            N=n,
            K=k,
            dtype=_DTYPES[dtype],
            layout=layout,
            arch=arch,
            numerics=numerics,
            float32=float32,
        )
    except (RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else explanation.table(every))
