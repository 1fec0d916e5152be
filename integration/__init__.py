"""End-to-end checks: transformers models, built from configs with random weights, through ``use_custom_gemm()``.

``python -m integration`` runs them, ``python -m integration.demo`` (``make demo``) shows one. Nothing is downloaded.
"""

import os

# Models come from configs alone: a mistake that asks the hub for a file must fail, not wait for a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Its notes on generation defaults say nothing about a result.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
