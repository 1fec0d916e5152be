"""What ``hgemm bench`` and ``hgemm tune`` run, installed with the package so that they work from a wheel.

- ``suites`` and ``zoo`` list the problems, ``sampling`` draws random ones, and ``workload`` builds their tensors.
- ``timing`` and ``statistics`` are the measuring protocol. ``runner`` applies it to a suite, with other libraries from
  ``peers`` beside ours, and ``survey`` to many shapes in little time; ``survey_figures`` sums a survey up.
- ``record`` writes and reads result files, in the form of ``lean``; ``shapes`` those of the dispatcher's model.
- ``console`` and ``plots`` show results.

Nothing else in the package imports this. The scripts and the committed results are in ``benchmarks/`` of a checkout,
and so are the ladder's course and the report.
"""
