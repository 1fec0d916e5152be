"""End-to-end checks: transformers models with ``use_custom_gemm()``, built from configs with random weights.

``python -m integration`` runs them, and ``python -m integration.demo`` (``make demo``) shows one. Nothing is
downloaded.
"""

import os

# Models are built from configs alone. If a mistake requests a file from the hub, the run must fail and not wait for a
# network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Silences warnings about generation defaults, which do not concern the results.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from hgemm_ops import use_for_experts

use_for_experts()  # models take it by experts_implementation="hgemm"
