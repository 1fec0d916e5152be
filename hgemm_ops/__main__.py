"""``python -m hgemm_ops``: the ``hgemm`` command line, without the installed script."""

from hgemm_ops.cli import main

main(prog_name="python -m hgemm_ops")
