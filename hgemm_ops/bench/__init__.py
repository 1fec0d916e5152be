"""The benchmark protocol, shipped so that ``hgemm bench`` and ``hgemm tune`` work from a wheel.

``suites`` says which problems, ``workload`` builds them, ``timing`` and ``statistics`` are the protocol, ``runner``
puts them together, with other libraries from ``peers`` beside ours, ``record`` says where and on what a result was
measured, ``console`` and ``plots`` show it. Scripts of the repository and the committed results are in ``benchmarks/``.
Importing ``hgemm_ops`` imports none of this.
"""
