"""The ladder's course.

``rungs`` lists its steps in order. ``measure`` and ``cublas`` time them. ``plots`` draws the results. ``command`` is
the command ``hgemm ladder``. ``published_kernels.csv`` lists the 69 published kernels that the ladder follows, and
``published_ratios.csv`` their published speeds over torch.
"""
