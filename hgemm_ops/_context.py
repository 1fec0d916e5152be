"""``use_custom_gemm()``: has the matrix products of any PyTorch code run on the kernels of this package."""

from contextlib import ContextDecorator

import torch

from hgemm_ops import _native, _override, _sites, _tables, _tuning, _variants
from hgemm_ops._report import Report

__all__ = ["use_custom_gemm"]

_PLAIN = _native.Settings()


class use_custom_gemm(ContextDecorator):
    """While it is active, torch's matrix products on CUDA run on our kernels where these are faster; a context manager
    and a decorator.

    Example::

        for batch in loader:
            with use_custom_gemm() as report:
                loss = model(batch).loss
                loss.backward()
        print(report)

        @use_custom_gemm(variant="torch")
        def train_step(batch): ...

    It changes what torch itself calls for aten::mm, bmm, addmm, baddbmm, addmv, dot, vdot and ``_addmm_activation``
    (``csrc/aten``), below autograd, autocast, functorch, tensor subclasses and compiled graphs. So every function that
    ends there is served, ``nn.Linear``, ``@``, ``einsum``, attention's own products and gradients among them; shapes,
    dtypes, errors, gradients and graphs are torch's. Other dtypes than float16, bfloat16 and float32, CPU tensors,
    and what no kernel of ours would do faster, run torch's kernels; the report says why.

    It holds for the thread that enters it, and for every thread that has entered none: autograd's, for instance, and a
    data-parallel wrapper's. Contexts nest: the innermost one's ``variant`` holds, and of those that have a ``numerics``
    or a ``float32`` the innermost one's. One object may be entered again, also while it is active, and by several
    threads. Compiled graphs look at it when they run: they need no recompilation. Entering it inside a function that
    torch.compile compiles breaks the graph there. Replays of a CUDA graph run what was captured.

    Args:
        variant: a kernel's name (see :func:`hgemm_ops.variants`) for all float16 and bfloat16 products, ``"torch"`` for
            torch's own, or None to let the environment or the dispatcher choose. A product that a named kernel cannot
            serve raises RuntimeError, with the reasons and the kernels that can.
        numerics: ``"batch_invariant"``: the bits of row i of a float16 or bfloat16 product depend on row i of A, on B,
            on N, K, dtype, layout and epilogue alone; not on other rows, on how many there are, on the batch, or on
            where anything lies. Where ``float32="split"`` holds, so of a float32 one. Only kernels that keep that are
            taken, however slow; what torch would have to serve raises RuntimeError. Other products are torch's, and the
            report says that their bits may vary; with ``"batch_invariant_or_raise"`` they raise RuntimeError.
            ``"fast"``: any kernel. None: as outside of this context, else by ``HGEMM_OPS_NUMERICS``, else fast.
        float32: ``"split"``: float32 products may run on tensor cores, each operand as the sum of three bfloat16
            matrices. The error against float64 is at most strict's plus one rounding. What that would not make faster
            stays torch's, unless ``numerics`` asks for its bits. Where torch's flags allow TF32, ours still come first,
            and are more exact. ``"strict"``: torch's kernels, or ours for few rows in the same arithmetic; with TF32
            allowed, torch's. None: as outside of this context, else by ``HGEMM_OPS_FLOAT32``, else strict.
        tune: whether the first product of a shape that no table holds, and that kernels of ours can serve, has kernels
            timed on its operands: torch's, and up to seven of ours, those predicted to be the fastest. This takes at
            most 20 ms, beside loading kernels, finishing what the stream holds and storing the times; of products of
            more than 5 ms, two calls of torch's kernel and two of one of ours. The fastest is taken as from any table,
            and stored for later processes with this GPU, driver, CUDA, torch and package; processes that time at once
            may choose differently. While a CUDA graph is captured nothing is timed: run a step before. None: what
            ``HGEMM_OPS_TUNE`` says, which is no by default.
        sites: whether the report names the module that each product belongs to. Hooks on all modules take 2 to 4 µs of
            host time for each call of a module; while they are registered, torch.compile compiles anew.

    Raises:
        ValueError: no kernel has the name ``variant``, or ``numerics`` or ``float32`` is none of these.
        RuntimeError: on entering, ``numerics`` is not fast and this library does not run on this machine's GPUs.

    Attributes:
        report: a :class:`Report` of the products since the first entry, also what ``with`` gives.
    """

    def __init__(
        self,
        *,
        variant: str | None = None,
        numerics: str | None = None,
        float32: str | None = None,
        tune: bool | None = None,
        sites: bool = False,
    ) -> None:
        self._tune = _tuning.by_default() if tune is None else bool(tune)
        self._settings = _PLAIN
        if (variant, numerics, float32, tune) != (None, None, None, None):
            choice = _variants.resolve_choice(variant, numerics, float32)
            self._settings = _native.Settings(**choice, tunes=self._tune)
        self._sites = sites
        self.report = Report()

    def __enter__(self) -> Report:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.__enter__)()  # breaks the graph, here rather than somewhere below
        if not _override.start():
            asked = self._settings.numerics
            mode = _variants.standing_numerics() if asked == _native.AUTO else _native.NUMERICS[asked]
            if mode != "fast" and torch.cuda.is_available():
                raise RuntimeError(f"use_custom_gemm: numerics={mode!r} cannot be held: {_override.reason()}")
            return self.report
        _tables.ensure()
        if self._tune:
            _tuning.tuner()
        context = self.report._context
        if context is None:  # one object, whichever thread comes first
            context = vars(self.report).setdefault("_context", _native.Context(self._settings))
        if self._sites:
            _sites.start()
        context.enter()
        return self.report

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.__exit__)(*error)
        context = self.report._context
        if context is None or not context.exit():
            return  # the override did not start
        if self._sites:
            _sites.stop()
        if self._tune:
            _tuning.tuner().finish()
