"""The benchmarks that ``hgemm bench`` and ``hgemm tune`` run.

They are installed with the package, so that both commands work from a wheel.

- ``suites`` and ``zoo`` list the problems, ``sampling`` draws random ones, and ``workload`` builds their tensors.
- ``timing`` and ``statistics`` are the measuring protocol.
- ``runner`` applies the protocol to a suite. It can also time other libraries, which are in ``peers``.
- ``survey`` times many shapes in little time, and ``survey_figures`` sums up its results.
- ``record`` writes and reads result files, in the form of ``lean``. ``shapes`` writes and reads the data of the
  dispatcher's model.
- ``console`` and ``plots`` show results.

Nothing else in the package but the commands imports it. The scripts, the committed results, the ladder's course and the
report are in ``benchmarks/`` of a checkout.
"""
