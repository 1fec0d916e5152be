"""``use_custom_gemm()`` and ``enable()``: make the matmuls of any PyTorch code run on the kernels of this package."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from . import _decorate, _devices, _forks, _native, _override, _sites, _tables, _tuning, _variants
from ._report import Report

__all__ = ["disable", "enable", "use_custom_gemm"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PLAIN = _tuning.by_default(), _native.Settings().as_int
_calls: _native.ContextCalls | None = None  # once a context was entered: what is around each
_is_compiling = torch.compiler.is_dynamo_compiling


def _settings_of(variant: str | None, numerics: str | None, float32: str | None, tune: bool) -> int:
    return _native.Settings(**_variants.resolve_choice(variant, numerics, float32), tunes=tune).as_int


class use_custom_gemm(ContextDecorator):
    """Makes torch's CUDA matmuls use the kernels of this package where they are expected to be faster.

    It is a context manager, and a decorator of functions, methods, and generator and coroutine functions.

    Example::

        for batch in loader:
            with use_custom_gemm() as report:
                loss = model(batch).loss
                loss.backward()
        print(report)

        @use_custom_gemm(variant="torch")
        def train_step(batch): ...

    The context replaces the CUDA implementations of aten::mm, bmm, addmm, baddbmm, addmv, dot, vdot,
    ``_addmm_activation``, ``_grouped_mm`` and ``_int_mm`` (``csrc/aten``). They are below autograd, autocast,
    functorch, tensor subclasses and compiled graphs. Every function that ends in one of them is covered, such as
    ``nn.Linear``, ``@``, ``einsum``, unfused attention and gradients. Shapes, dtypes, errors, gradients and graphs are
    torch's. Torch's kernels run on the CPU, for dtypes other than float16, bfloat16 and float32, and wherever no kernel
    of this package is expected to be faster. Some matmuls of other dtypes are covered: int8 in ``torch._int_mm``,
    float64 on Hopper, batches of tiny float64 or complex64 matrices, and complex64 with ``float32="split"``. For a
    matmul on CUDA, the report says why torch ran it. The first context registers the override with torch. It stays
    registered, and calls torch's own kernels while no context is active. Another package may have overridden an
    operator before, for batch-invariant results for instance. Its kernel is then called in place of torch's, here and
    wherever this page says torch. If another package overrides an operator later, its kernel runs, and the report says
    so. Entering a context does not initialise CUDA, so a process may still fork. The first matmul on a device finds out
    about it. If no kernel of this package can run there, all its matmuls are left to torch, with one line in the log.

    The context applies to the thread that enters it, and to all threads outside any context of their own, such as
    autograd's or those of a data-parallel wrapper. Contexts nest. The inner ``variant`` counts, even when it is None;
    ``numerics`` and ``float32`` are inherited from the outer context where the inner one leaves them None. Contexts may
    be left in any order, as coroutines on one thread do: leaving one leaves the others active, and the one entered last
    counts as the innermost. One object may be entered again, also while it is active, and by several threads; leaving
    it ends its last entry on this thread.

    A ``with`` stays active on its thread while the generator or coroutine around it is suspended. The decorator does
    not: it applies to a generator function, coroutine function or async generator function while the body runs, and not
    while it is suspended at a ``yield`` or ``await``. This includes one that another decorator, such as
    ``torch.no_grad()``, has wrapped. Nor do contexts that the body itself has entered apply then.

    A compiled graph looks at the context when it runs, so entering one never recompiles the graph. Entering it inside a
    function that torch.compile compiles breaks the graph there. A replay of a CUDA graph runs the kernels that were
    captured. The context applies to the matmuls that the graph has: inductor replaces ``mv``, ``addmv``, ``dot``,
    ``vdot`` and ``matrix @ vector``, and with ``mode="max-autotune"`` others too, by code of its own. These are
    torch's, in no report, and ``numerics`` does not apply to them. :func:`hgemm_ops.matmul` stays a matmul in a
    compiled graph.

    Args:
        variant: the name of a kernel (see :func:`hgemm_ops.variants`) for every float16 and bfloat16 matmul, and for
            every float32 matmul if the kernel takes float32. ``"torch"`` means torch's own kernels. None lets the
            environment or the dispatcher choose. A matmul that the named kernel cannot run raises RuntimeError, with
            the reasons and the names of the kernels that can.
        numerics: With ``"batch_invariant"``, the bits of row i of a float16 or bfloat16 matmul depend only on row i of
            A, on B, and on N, K, dtype, layout and epilogue. They do not depend on the other rows or their number, on
            the batch and the place in it, or on addresses and alignment. While ``float32="split"`` is active, float32
            matmuls are batch-invariant too. Only kernels that guarantee these bits run, even where torch is faster.
            Such a matmul raises RuntimeError if only torch could compute it, but where the memory that every such
            kernel needs cannot be allocated, torch computes it, and the report says so. All other matmuls are torch's,
            and the report says that their bits may vary. With ``"batch_invariant_or_raise"`` both are an error.
            Where such a matmul has a float32 result, sums are added up in float32 every 128 k, so that the rms error
            is at most twice torch's plus one rounding, up to K = 65,536. ``"fast"`` allows any kernel. None inherits
            the mode of the outer context, else of ``HGEMM_OPS_NUMERICS``, else fast.
        float32: With ``"split"``, float32 and complex64 matmuls may run on tensor cores, each operand as the sum of two
            float16 or three bfloat16 matrices. The error against float64 is at most that of ``"strict"`` plus one
            rounding. Torch keeps a matmul that splitting is not expected to make faster, unless ``numerics`` asks for
            batch-invariant bits. Where torch's flags allow TF32, split still applies and is more accurate than TF32.
            ``"strict"`` adds up products of the operands in float32, or in float64, which is more accurate: on torch's
            kernels, or on ours, for instance for few rows or columns. Where torch's flags allow TF32, strict leaves
            every float32 matmul to torch, unless a kernel is named. None inherits the mode of the outer context, else
            of ``HGEMM_OPS_FLOAT32``, else strict.
        tune: whether the first matmul of an untuned shape times kernels on its operands, if any kernel of this package
            can run it. Torch's kernel is timed, and at most seven of ours, those predicted to be the fastest. Timing
            takes at most 20 ms per shape, in addition to loading kernels, waiting for the work already on the stream,
            and storing the times. Of a matmul of more than 5 ms, it runs two calls of torch's kernel and two of one
            kernel of ours. The times then count as those of any tuning table, and are stored for later processes with
            this GPU, driver, CUDA, torch and package. Processes that tune at the same time may choose different
            kernels. Nothing is timed while a CUDA graph is captured, so run one step before the capture. Nothing is
            timed where a kernel is named, or where ``numerics`` is not fast. None means the value of
            ``HGEMM_OPS_TUNE``, which is off by default.
        sites: whether the report names the module that each matmul belongs to. Hooks on all modules take 2 to 4 µs of
            host time per call of a module. Registering them makes torch.compile compile anew.

    Raises:
        ValueError: no kernel has the name ``variant``, or ``numerics`` or ``float32`` is not one of the modes.
        TypeError: a class is decorated.
        RuntimeError: on entering, ``numerics`` is not fast and the override cannot start, on a machine with a GPU. On
            a GPU that this library cannot run on, the matmul raises it.

    Attributes:
        report: a :class:`Report` of the matmuls since the first entry. ``with`` returns the same object.
    """

    def __init__(
        self,
        *others: NoReturn,
        variant: str | None = None,
        numerics: str | None = None,
        float32: str | None = None,
        tune: bool | None = None,
        sites: bool = False,
    ) -> None:
        if others:
            given: object = others[0]
            how = "@use_custom_gemm() decorates a function" if callable(given) else "as in variant='torch'"
            raise TypeError(f"use_custom_gemm takes its settings by name: {how}")
        self.report = Report()
        self._sites = sites
        if variant is None and numerics is None and float32 is None and tune is None:
            self._tune, self._settings = _PLAIN
        else:
            self._tune = _PLAIN[0] if tune is None else bool(tune)
            settings_of = torch.compiler.disable(_settings_of) if _is_compiling() else _settings_of
            self._settings = settings_of(variant, numerics, float32, self._tune)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle has the settings, by name. Its report begins anew, and it is not active."""
        settings = _native.Settings.of(self._settings)
        choice = {
            "variant": _variants.name_of(settings.variant),
            "numerics": None if settings.numerics == _native.AUTO else _native.NUMERICS[settings.numerics],
            "float32": None if settings.float32 == _native.AUTO else _native.FLOAT32[settings.float32],
        }
        return {**vars(self), "report": Report(), "_settings": (choice, settings.tunes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        choice, tunes = state["_settings"]
        settings = _native.Settings(**_variants.resolve_choice(**choice), tunes=tunes)
        vars(self).update(state, _settings=settings.as_int)

    def __call__(self, func: _Function) -> _Function:
        """Returns ``func`` with its body inside the context. TypeError if it is a class."""
        if isinstance(func, (staticmethod, classmethod)):
            return type(func)(self(func.__func__))
        _decorate.refuse(func)
        return _decorate.decorate(func, self, self._open)  # type: ignore[return-value]

    def _capsule(self) -> Any:
        """Returns what is to be entered, a capsule; None if torch's matmuls cannot be overridden.

        RuntimeError if ``numerics`` cannot be guaranteed then.
        """
        if not _override.start():
            asked = _native.Settings.of(self._settings).numerics
            mode = _variants.standing_numerics() if asked == _native.AUTO else _native.NUMERICS[asked]
            if mode != "fast" and _devices.may_exist():
                raise RuntimeError(f"use_custom_gemm: numerics={mode!r} is not possible: {_override.reason()}")
            return None
        global _calls
        if _calls is None:
            _tables.ensure()
            _calls = _native.context_calls()
        if self._tune:
            _tuning.tuner()
        if self.report._capsule is None:  # setdefault() is atomic: threads that enter at the same time share one object
            return vars(self.report).setdefault("_capsule", _calls.new(self._settings))
        return self.report._capsule

    def _began(self, thread: int = 0) -> None:
        """Begins what goes with an entry of the context; ``thread`` is that of the entry if it ends with the thread."""
        if self._sites:
            _sites.start(self, thread)

    def _ended(self) -> None:
        """Ends what begins beside an entry of the context."""
        if self._sites:
            _sites.stop(self)
        if self._tune:
            _tuning.tuner().finish()

    @contextmanager
    def _open(self) -> Iterator[_decorate.Pieces]:
        """For the time of one call of a decorated generator or coroutine function."""
        begin = self._capsule
        capsule = torch.compiler.disable(begin)() if torch.compiler.is_compiling() else begin()
        if capsule is None:
            yield _decorate.Pieces(None)
            return
        self._began()
        try:
            yield _decorate.Pieces(_native.Context.of(capsule).span())
        finally:
            self._ended()

    def __enter__(self) -> Report:
        if _is_compiling():
            return torch.compiler.disable(self.__enter__)()  # breaks the graph here, not in a call below
        report = self.report
        capsule = report._capsule or self._capsule()
        if capsule is not None:
            if self._sites:
                self._began(threading.get_ident())
            _calls.enter(capsule)  # type: ignore[union-attr]
        return report

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if _is_compiling():
            return torch.compiler.disable(self.__exit__)(kind, error, trace)
        capsule = self.report._capsule
        # Otherwise the override did not start, or no entry is left to end.
        if capsule is not None and _calls is not None and _calls.exit(capsule) and (self._sites or self._tune):
            self._ended()


_lock = _forks.lock()
_active: use_custom_gemm | None = None  # the context of the process; None if there is none
_last: use_custom_gemm | None = None  # that of the last enable(), also after disable()


def enable(
    *,
    variant: str | None = None,
    numerics: str | None = None,
    float32: str | None = None,
    tune: bool | None = None,
    sites: bool = False,
) -> Report:
    """Makes torch's CUDA matmuls use the kernels of this package in the whole process, until :func:`disable`.

    It is :func:`use_custom_gemm` for every thread, those that run already and those that are started later, and for
    autograd's. The arguments and the errors are the same. ``HGEMM_OPS_ENABLE=1`` calls it at ``import torch``, also in
    processes that the program starts.

    A context of :func:`use_custom_gemm` is inside of it: it has precedence on its thread, and on threads without a
    context of their own while it is active. Afterwards the settings of this function apply again. In
    ``with use_custom_gemm(variant="torch"):`` torch runs every matmul.

    A second call replaces the settings, and the report that the first one has returned counts no more. A thread inside
    a context of its own takes the new ``numerics`` and ``float32`` over when it next enters or leaves a context.
    CUDA is not initialised, so a process may still fork, and its children are enabled as well.

    Returns:
        A :class:`Report` of the matmuls of all threads since the call.
    """
    if torch.compiler.is_compiling():
        choice = {"variant": variant, "numerics": numerics, "float32": float32, "tune": tune, "sites": sites}
        return torch.compiler.disable(enable)(**choice)
    context = use_custom_gemm(variant=variant, numerics=numerics, float32=float32, tune=tune, sites=sites)
    _make_active(context)
    return context.report


def disable() -> None:
    """Ends what :func:`enable` began; without it, nothing happens. Contexts of :func:`use_custom_gemm` stay active."""
    if torch.compiler.is_compiling():
        return torch.compiler.disable(disable)()
    _make_active(None)


def _make_active(context: use_custom_gemm | None) -> None:
    """Makes a context that of the process, in place of the one before."""
    global _active, _last
    capsule = None if context is None else context._capsule()
    with _lock:
        before, _active = _active, None if capsule is None else context
        _last = context or _last
        if _active is not None:
            _active._began()
            _native.Context.of(capsule).set_process()
        elif before is not None:
            _native.set_no_process()
    if before is not None:
        before._ended()


def process_report() -> Report | None:
    """Returns the report of the last :func:`enable`, also after :func:`disable`; None if there was none."""
    return None if _last is None else _last.report
