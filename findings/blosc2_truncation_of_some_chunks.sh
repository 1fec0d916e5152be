#!/usr/bin/env bash
# blosc2 4.14.1: the filter that truncates numbers to 12 bits has no effect on chunks that do not compress.
#
# TRUNC_PREC keeps the given number of bits of each mantissa, so that an array compresses better. One would expect that it truncates
# the whole array, and that equal numbers stay equal. But if the codec cannot make a chunk smaller, blosc2 stores the chunk as it was
# before the filters. So the other numbers of a chunk decide whether a number is truncated, and an array is read back with two values
# for the same number. Random numbers in a chunk of LZ4 are enough, although a third of their bits are zeros by then. ZSTD, the
# default, does compress them, but no chunk of up to 32 bytes.
#
# A way around it: truncate the numbers before they are compressed.
#
# Seen with blosc2 4.14.1 and numpy 2.4.6, Python 3.11, for an array of two chunks of 20,000 numbers. All numbers of the first are
# 1/3, and those of the second are random, except for a 1/3 at its beginning:
#   LZ4, the 1/3 of both chunks:   [0.33331298828125, 0.3333333432674408]
#   ZSTD, the 1/3 of both chunks:  [0.33331298828125, 0.33331298828125]
#   ZSTD, an array of 8 and of 9:  [0.3333333432674408, 0.33331298828125]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q blosc2==4.14.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import blosc2
import numpy as np


def stored(x: np.ndarray, codec: blosc2.Codec) -> np.ndarray:
    cparams = {"codec": codec, "filters": [blosc2.Filter.TRUNC_PREC], "filters_meta": [12]}
    return blosc2.asarray(x, chunks=(min(len(x), 20_000),), cparams=cparams)[:]


x = np.full(40_000, 1 / 3, np.float32)
x[20_001:] = np.random.default_rng(0).standard_normal(19_999)
truncated = (x.view(np.uint32) >> 11 << 11).view(np.float32)  # 12 bits of 23
lz4, zstd = stored(x, blosc2.Codec.LZ4), stored(x, blosc2.Codec.ZSTD)
small = [stored(x[:count], blosc2.Codec.ZSTD) for count in (8, 9)]
print("LZ4, the 1/3 of both chunks:", lz4[[0, 20_000]].tolist())
print("ZSTD, the 1/3 of both chunks:", zstd[[0, 20_000]].tolist())
print("ZSTD, an array of 8 and of 9:", [float(array[0]) for array in small])
expected = np.concatenate([truncated[:20_000], x[20_000:]])
assert np.array_equal(lz4, expected) and np.array_equal(zstd, truncated), "the behaviour has changed"
assert np.array_equal(small[0], x[:8]) and np.array_equal(small[1], truncated[:9]), "the behaviour has changed"
PYTHON
