"""``hgemm explain M N K``: lists every kernel, why it is or is not eligible, and the choice with its source."""

from __future__ import annotations

import json

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
    try:
        explanation = hgemm_ops.explain(
            M=m,
            N=n,
            K=k,
            dtype=_DTYPES[dtype],
            layout=layout,
            batch=batch,
            alignment=int(alignment),
            arch=arch,
            activation=activation,
            bias=bias,
            out_dtype=_DTYPES[out_dtype] if out_dtype else None,
            variant=variant,
            numerics=numerics,
            float32=float32,
        )
    except (RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else explanation.table(every))
