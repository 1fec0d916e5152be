"""The ladder's course: its steps in order (``rungs``), how they are timed (``measure``, ``cublas``), the plots of the
results (``plots``), and the command ``hgemm ladder`` (``command``).

``published_kernels.csv`` lists the 69 published kernels that the ladder follows, ``published_ratios.csv`` their
published speeds over torch.
"""
