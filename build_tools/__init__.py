"""How the native libraries are built: what ``setup.py`` calls, and what tests ask. No wheel carries it.

``toolkit`` finds a CUDA toolkit that can build them. ``archs`` says which architectures each source is compiled for.
``ninja`` writes build.ninja and runs it. ``nvcc`` is the program that ninja starts for each CUDA source. ``aten``
compiles ``csrc/aten`` for other releases of torch. Nothing here imports torch or setuptools.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
#: What a build leaves behind and the next one starts from: objects, build.ninja, and ptxas.txt, ptxas's report.
BUILD = ROOT / "build" / "native"
