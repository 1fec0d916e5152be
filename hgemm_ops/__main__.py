"""``python -m hgemm_ops``: the ``hgemm`` command line, without the installed script."""

from .cli import main

main(prog_name="python -m hgemm_ops")
