"""Builds the native libraries. ``setup.py`` and tests use this package, and no wheel contains it.

``toolkit`` finds a CUDA toolkit that can build them. ``archs`` says which architectures each source is compiled for.
``ninja`` writes build.ninja and runs ninja. ``nvcc`` is the program that ninja starts for each CUDA source. ``aten``
compiles ``csrc/aten`` for other releases of torch. Nothing here imports torch or setuptools.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
#: The build directory, which the next build continues from. It has the objects, build.ninja, and ptxas.txt, the report
#: of ptxas.
BUILD = ROOT / "build" / "native"
