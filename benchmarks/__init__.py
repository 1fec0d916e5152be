"""What measures, fits and draws, and needs a checkout: scripts, run as ``python benchmarks/<script>.py``.

``course`` holds the ladder's course and ``hgemm ladder``, ``report`` the page that ``hgemm report`` writes. The
measuring protocol itself is ``hgemm_ops.bench``, which is installed with the package.
"""
