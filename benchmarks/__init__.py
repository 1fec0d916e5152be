"""The scripts that measure, fit and draw. They need a checkout, and run as ``python benchmarks/<script>.py``.

``course`` is the ladder's course and the command ``hgemm ladder``. ``report`` makes the page that ``hgemm report``
writes. The measuring protocol itself is ``hgemm_ops.bench``, which is installed with the package.
"""
