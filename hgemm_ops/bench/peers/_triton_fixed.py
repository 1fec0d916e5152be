"""The kernel of ``triton_fixed``. It has a file of its own because importing it needs Triton."""

# Triton reads the source, in which annotations must be Triton's own objects.
# mypy: allow-untyped-decorators, disable-error-code="no-untyped-def"
import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, bias_ptr, out_ptr, m, n, k, a_row, a_col, b_row, b_col,
    HAS_BIAS: tl.constexpr, GROUP: tl.constexpr, BLOCKS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Writes a @ b + bias to out (m, n), which is contiguous. A block computes every BLOCKS-th tile."""
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    in_group = GROUP * tiles_n
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, BLOCKS, flatten=True):
        first = tile // in_group * GROUP
        height = min(tiles_m - first, GROUP)
        rows = (first + tile % in_group % height) * BM + tl.arange(0, BM)
        cols = (tile % in_group // height) * BN + tl.arange(0, BN)
        steps = tl.arange(0, BK)
        # Rows and columns outside the matrix are replaced by the first ones, and their results are not stored.
        # max_contiguous and multiple_of tell Triton that neighbouring indices are consecutive. Otherwise it would load
        # the elements one by one. It loads vectors only where whole rows and columns allow it, and then a vector is
        # either inside the matrix or outside.
        a_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < m, rows, 0), BM), BM).to(tl.int64)
        b_cols = tl.max_contiguous(tl.multiple_of(tl.where(cols < n, cols, 0), BN), BN).to(tl.int64)
        a = a_ptr + a_rows[:, None] * a_row + steps[None, :] * a_col
        b = b_ptr + steps[:, None] * b_row + b_cols[None, :] * b_col
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(k, BK)):
            left = k - step * BK
            x = tl.load(a, mask=steps[None, :] < left, other=0.0)
            y = tl.load(b, mask=steps[:, None] < left, other=0.0)
            acc = tl.dot(x, y, acc)
            a += BK * a_col
            b += BK * b_row
        if HAS_BIAS:
            acc += tl.load(bias_ptr + b_cols).to(tl.float32)[None, :]
        out = out_ptr + rows[:, None].to(tl.int64) * n + cols[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))
