"""What runs before torch is imported: the entry points of this package, which import ``hgemm_ops`` only when asked to.

``import torch`` imports this package in every process of an environment that hgemm_ops is installed in. So this
package imports nothing but ``os`` and ``sys``, and importing it does not import ``hgemm_ops``.
"""

import os
import sys


def autoload() -> None:
    """Imports hgemm_ops if ``HGEMM_OPS_ENABLE`` is set, which calls :func:`hgemm_ops.enable` at the end of its import.

    It is the entry point of the groups "torch.backends", which ``import torch`` calls, and "vllm.general_plugins" and
    "sglang.srt.plugins", which these engines call. It may be called several times. A failure is a warning in the log:
    an exception would stop ``import torch``.
    """
    if os.environ.get("HGEMM_OPS_ENABLE", "").lower() in ("", "0", "false"):
        return
    try:
        import hgemm_ops  # noqa: F401
    except Exception as error:
        import logging

        reason = f"{type(error).__name__}: {error}"
        logging.getLogger("hgemm_ops").warning("HGEMM_OPS_ENABLE has no effect, torch runs as before: %s", reason)


def main() -> None:
    """The ``hgemm`` command. ``hgemm run`` imports torch only to look up the kernel that ``--variant`` names: otherwise
    that is left to the program that it runs."""
    if sys.argv[1:2] == ["run"]:
        from hgemm_ops_start.run import run

        run(sys.argv[2:], prog_name="hgemm run")
    from hgemm_ops.cli import main as command

    command()
