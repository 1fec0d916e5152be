"""``@use_custom_gemm()`` on every kind of function, and contexts of coroutines that share a thread. Needs no GPU."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import random
import sys
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import needs_library
from torch import nn

from hgemm_ops import _native, _override, _sites, _tuning, use_custom_gemm

pytestmark = needs_library

FAST, INVARIANT, STRICT = _native.NUMERICS


@pytest.fixture(autouse=True)
def _started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The override counts as started. No test leaves a context active."""
    monkeypatch.setattr(_override, "start", lambda: True)
    yield
    assert now() == (FAST, "strict")


def now() -> tuple[str, str]:
    """The numerics and the float32 mode of a product that this thread would run now."""
    library = _native.lib()
    return (
        _native.NUMERICS[library.hgemm_standing_numerics()],
        _native.FLOAT32[library.hgemm_standing_float32()],
    )


def mode() -> str:
    return now()[0]


@types.coroutine
def pause(value: Any = None) -> Generator[Any, Any, Any]:
    """Suspends a coroutine. It is driven by hand, with ``send`` and ``throw``."""
    return (yield value)


# Functions


def test_functions_and_methods() -> None:
    context = use_custom_gemm(numerics=INVARIANT)

    class Holder:
        @context
        def method(self, x: int, *, y: int = 1) -> tuple[str, int]:
            """Adds."""
            return mode(), x + y

        @context
        @staticmethod
        def above_static(x: int) -> tuple[str, int]:
            return mode(), x

        @staticmethod
        @context
        def below_static(x: int) -> tuple[str, int]:
            return mode(), x

        @context
        @classmethod
        def above_class(cls, x: int) -> tuple[str, type, int]:
            return mode(), cls, x

        @classmethod
        @context
        def below_class(cls, x: int) -> tuple[str, type, int]:
            return mode(), cls, x

        @property
        @context
        def value(self) -> str:
            return mode()

        def __call__(self, x: int) -> tuple[str, int]:
            return mode(), x

    holder = Holder()
    assert holder.method(1, y=2) == (INVARIANT, 3)
    assert Holder.method.__doc__ == "Adds." and Holder.method.__name__ == "method"
    assert str(inspect.signature(holder.method)) == "(x: 'int', *, y: 'int' = 1) -> 'tuple[str, int]'"
    for owner in (holder, Holder):
        assert owner.above_static(4) == owner.below_static(4) == (INVARIANT, 4)
        assert owner.above_class(5) == owner.below_class(5) == (INVARIANT, Holder, 5)
    assert holder.value == INVARIANT
    assert context(holder)(6) == (INVARIANT, 6)
    assert context(holder.method)(6) == (INVARIANT, 7)
    assert context(functools.partial(holder.method, 1))(y=9) == (INVARIANT, 10)
    assert context(len)([1, 2]) == 2


def test_modules_are_called_inside() -> None:
    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(mode())
            return super().forward(x)

    seen: list[str] = []
    layer, x = Layer(2, 3), torch.ones(1, 2)
    decorated = use_custom_gemm(numerics=INVARIANT)(layer)
    assert torch.equal(decorated(x), layer(x)) and seen == [INVARIANT, FAST]
    assert not hasattr(decorated, "_parameters")


def test_recursion_and_exceptions() -> None:
    @use_custom_gemm(numerics=INVARIANT)
    def depth(n: int) -> int:
        assert mode() == INVARIANT
        if n == 0:
            raise ZeroDivisionError
        return depth(n - 1)

    with pytest.raises(ZeroDivisionError):
        depth(5)
    assert mode() == FAST


@pytest.mark.parametrize("what", [nn.Linear, int, use_custom_gemm], ids=lambda what: what.__name__)
def test_classes_are_refused(what: type) -> None:
    with pytest.raises(TypeError, match=rf"{what.__name__} is a class.*Decorate its methods"):
        use_custom_gemm()(what)


@pytest.mark.parametrize(
    "what", [3, None, property(len), functools.partialmethod(len)], ids=lambda what: type(what).__name__
)
def test_what_is_no_function_is_refused(what: Any) -> None:
    with pytest.raises(TypeError, match="expected a function, got "):
        use_custom_gemm()(what)


# Generators


def test_a_generator_holds_while_it_runs() -> None:
    context = use_custom_gemm(numerics=INVARIANT)

    @context
    def count(n: int) -> Iterator[tuple[int, str]]:
        """Counts."""
        for i in range(n):
            yield i, mode()

    assert inspect.isgeneratorfunction(count) and count.__doc__ == "Counts."
    steps = count(3)
    assert inspect.isgenerator(steps)
    for i, got in enumerate(steps):
        assert got == (i, INVARIANT) and mode() == FAST
    with use_custom_gemm(numerics=STRICT):
        for _, seen in count(2):
            assert (seen, mode()) == (INVARIANT, STRICT)
    # Each call and each object has entries of its own.
    several = [count(3), use_custom_gemm(numerics=STRICT)(count)(3), count(3)]
    assert [next(steps) for steps in several * 3] == [(i, INVARIANT) for i in range(3) for _ in several]
    assert next(use_custom_gemm(float32="split")(context(lambda: (yield now())))()) == (INVARIANT, "split")


def echo(log: list[Any]) -> Generator[Any, Any, str]:
    """Shows everything that a generator can do."""
    value = None
    while True:
        log.append(mode())
        try:
            value = yield value
        except KeyError as error:
            value = repr(error)
        except GeneratorExit:
            log.append(("closed", mode()))
            return "closed"
        finally:
            log.append(("after", mode()))
        if value == "return":
            return "returned"
        if value == "raise":
            raise ZeroDivisionError("asked for")


def outcome(action: Callable[..., Any], *arguments: Any) -> tuple[str, str]:
    try:
        return "gave", repr(action(*arguments))
    except BaseException as error:
        return "raised", repr(error)


def test_a_generator_is_driven_as_if_it_were_not_decorated() -> None:
    """send, throw, close, next and their results, in random orders."""
    draw = random.Random(0)
    for _ in range(200):
        logs: tuple[list[Any], list[Any]] = [], []
        plain, decorated = echo(logs[0]), use_custom_gemm(numerics=INVARIANT)(echo)(logs[1])
        for _ in range(draw.randrange(8)):
            name, arguments = draw.choice(
                [
                    ("send", (None,)),
                    ("send", (3,)),
                    ("send", ("return",)),
                    ("send", ("raise",)),
                    ("throw", (KeyError("k"),)),
                    ("throw", (ValueError("v"),)),
                    ("throw", (StopIteration(4),)),
                    ("throw", (GeneratorExit(),)),
                    ("close", ()),
                    ("__next__", ()),
                ]
            )
            expected = outcome(getattr(plain, name), *arguments)
            assert outcome(getattr(decorated, name), *arguments) == expected, (name, arguments)
            assert mode() == FAST
        assert [str(line).replace(INVARIANT, FAST) for line in logs[1]] == [str(line) for line in logs[0]]
        assert FAST not in str(logs[1])


def test_yield_from_and_return_values() -> None:
    @use_custom_gemm(numerics=INVARIANT)
    def inner() -> Generator[str, str, str]:
        return (yield mode()) + mode()

    @use_custom_gemm(numerics=STRICT)
    def outer() -> Generator[str, str, str]:
        got = yield from inner()
        return got + mode()

    steps = outer()
    assert next(steps) == INVARIANT
    with pytest.raises(StopIteration) as end:
        steps.send("sent ")
    assert end.value.value == f"sent {INVARIANT}{STRICT}"


def test_contexts_of_the_body_are_suspended_with_it() -> None:
    inner = use_custom_gemm(float32="split")

    @use_custom_gemm(numerics=INVARIANT)
    def steps() -> Iterator[tuple[str, str]]:
        yield now()
        with use_custom_gemm(numerics=STRICT):
            yield now()
            with inner:
                yield now()
                yield now()
            yield now()
        yield now()

    expected = [
        (INVARIANT, "strict"),
        (STRICT, "strict"),
        (STRICT, "split"),
        (STRICT, "split"),
        (STRICT, "strict"),
        (INVARIANT, "strict"),
    ]
    first, second = steps(), steps()
    for wanted in expected:
        for generator in (first, second):
            assert next(generator) == wanted
            assert now() == (FAST, "strict")
    # Left where they are, as a consumer that breaks out of a loop does.
    generators = [steps() for _ in expected]
    for count, generator in enumerate(generators):
        for _ in range(count):
            next(generator)
    generators[3].close()
    del generators, generator
    gc.collect()
    assert not inner.report._context.exit()  # type: ignore[union-attr]


def test_a_context_of_a_suspended_body_is_left_from_outside() -> None:
    other = use_custom_gemm(numerics=STRICT)

    def plain() -> Iterator[None]:
        with other:
            yield

    @use_custom_gemm(numerics=INVARIANT)
    def steps(source: Iterator[None]) -> Iterator[str]:
        next(source)
        yield mode()
        yield mode()

    source = plain()
    generator = steps(source)
    assert next(generator) == STRICT and mode() == FAST
    source.close()  # type: ignore[attr-defined]
    assert next(generator) == INVARIANT


def test_a_generator_moves_from_thread_to_thread() -> None:
    @use_custom_gemm(numerics=INVARIANT)
    def steps() -> Iterator[str]:
        with use_custom_gemm(float32="split"):
            while True:
                yield " ".join(now())

    seen: list[str] = []
    generator = steps()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            seen += [pool.submit(next, generator).result(), next(generator), " ".join(now())]
        pool.submit(generator.close).result()  # type: ignore[attr-defined]
    assert seen == [f"{INVARIANT} split", f"{INVARIANT} split", f"{FAST} strict"] * 3


def test_threads_drive_generators_of_one_object() -> None:
    context, failures = use_custom_gemm(numerics=INVARIANT), []

    @context
    def steps() -> Iterator[str]:
        for _ in range(200):
            yield mode()

    def work() -> None:
        for seen in steps():
            if seen != INVARIANT:
                failures.append(seen)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert not failures


def test_a_suspended_generator_keeps_nothing_alive() -> None:
    class Big:
        pass

    @use_custom_gemm()
    def steps() -> Iterator[Big]:
        while True:
            yield Big()

    generator = steps()
    for _ in range(2):
        alive = weakref.ref(next(generator))
        assert alive() is None


def test_sites_and_tuning_end_with_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[None] = []
    monkeypatch.setattr(_tuning, "tuner", lambda: types.SimpleNamespace(finish=lambda: finished.append(None)))

    @use_custom_gemm(sites=True, tune=True)
    def steps() -> Iterator[int]:
        yield from range(3)

    assert not _sites._users
    for _ in steps():
        assert len(_sites._users) == 1 and not finished
    assert not _sites._users and len(finished) == 1
    generator = steps()
    next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert not _sites._users and len(finished) == 2


def test_where_the_override_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_override, "start", lambda: False)

    @use_custom_gemm(sites=True)
    def steps() -> Iterator[str]:
        yield mode()

    @use_custom_gemm()
    async def work() -> str:
        await pause()
        return mode()

    assert list(steps()) == [FAST]
    assert asyncio.run(asyncio.wait_for(use_custom_gemm()(asyncio.sleep)(0, "result"), 10)) == "result"
    coroutine = work()
    coroutine.send(None)
    with pytest.raises(StopIteration):
        coroutine.send(None)


# Coroutines


def test_a_coroutine_holds_while_it_runs() -> None:
    @use_custom_gemm(numerics=INVARIANT)
    async def work(x: int) -> tuple[int, str]:
        """Works."""
        assert (await pause("first")) == "sent" and mode() == INVARIANT
        with pytest.raises(KeyError):
            await pause("second")
        assert mode() == INVARIANT
        return x, mode()

    assert inspect.iscoroutinefunction(work) and work.__doc__ == "Works."
    coroutine = work(7)
    assert inspect.iscoroutine(coroutine)
    assert coroutine.send(None) == "first" and mode() == FAST
    assert coroutine.send("sent") == "second" and mode() == FAST
    with pytest.raises(StopIteration) as end:
        coroutine.throw(KeyError())
    assert end.value.value == (7, INVARIANT)


def test_a_coroutine_is_closed_inside() -> None:
    seen: list[str] = []

    @use_custom_gemm(numerics=INVARIANT)
    async def work() -> None:
        try:
            await pause()
        finally:
            seen.append(mode())

    for end in (lambda coroutine: coroutine.close(), lambda coroutine: None):
        coroutine = work()
        coroutine.send(None)
        end(coroutine)
        del coroutine
        gc.collect()
    assert seen == [INVARIANT, INVARIANT]


def test_tasks_have_settings_of_their_own() -> None:
    async def work(expected: str, turns: int) -> None:
        assert mode() == expected
        with use_custom_gemm(float32="split"):
            for _ in range(turns):
                assert now() == (expected, "split")
                await asyncio.sleep(0)
            assert now() == (expected, "split")
        assert now() == (expected, "strict")

    async def plain() -> None:
        for _ in range(20):
            assert now() == (FAST, "strict")
            await asyncio.sleep(0)

    async def everything() -> None:
        contexts = {name: use_custom_gemm(numerics=name) for name in (FAST, INVARIANT, STRICT)}
        tasks = [context(work)(name, turns) for name, context in contexts.items() for turns in (3, 9, 5)]
        await asyncio.gather(*tasks, plain())

    asyncio.run(everything())


def test_cancelling_and_timeouts() -> None:
    seen: list[str] = []

    @use_custom_gemm(numerics=INVARIANT)
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append(mode())
            raise

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work(), 0.01)
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mode() == FAST

    asyncio.run(main())
    assert seen == [INVARIANT, INVARIANT]


def test_other_functions_of_coroutines() -> None:
    """Methods, callable objects, partials, and functions that are marked as coroutine functions."""

    class Service:
        @use_custom_gemm(numerics=INVARIANT)
        async def method(self, x: int) -> tuple[int, str]:
            await asyncio.sleep(0)
            return x, mode()

        async def __call__(self, x: int) -> tuple[int, str]:
            await asyncio.sleep(0)
            return x, mode()

    context, service = use_custom_gemm(numerics=INVARIANT), Service()
    functions: list[Callable[[int], Awaitable[Any]]] = [
        service.method,
        context(service),
        context(functools.partial(service)),
        context(functools.partial(Service.__call__, service)),
    ]
    if sys.version_info >= (3, 12):
        functions.append(context(inspect.markcoroutinefunction(lambda x: service(x))))
    for function in functions:
        assert inspect.iscoroutinefunction(function)
        assert asyncio.run(function(3)) == (3, INVARIANT)  # type: ignore[arg-type]


def test_decorators_that_make_plain_functions() -> None:
    """torch.no_grad() makes a plain function, which returns a coroutine, of a coroutine function, others of others."""

    def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda *args: function(*args))

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return mode()

    def generator() -> Generator[str, None, None]:
        yield mode()
        yield mode()

    async def async_generator() -> AsyncIterator[str]:
        yield mode()
        await asyncio.sleep(0)
        yield mode()

    def runs_it(function: Callable[[], Awaitable[str]]) -> Callable[[], str]:
        return functools.wraps(function)(lambda: asyncio.run(function()) + " and outside")  # type: ignore[arg-type]

    async def modes_of(body: AsyncIterator[str]) -> list[str]:
        return [mode(), *[name async for name in body], mode()]

    context = use_custom_gemm(numerics=INVARIANT)
    for decorator in (plainly, torch.no_grad()):
        decorated = context(decorator(coroutine))
        assert not inspect.iscoroutinefunction(decorated)
        assert asyncio.run(decorated()) == INVARIANT
    assert list(context(plainly(generator))()) == [INVARIANT] * 2
    decorated = context(plainly(async_generator))
    assert asyncio.run(modes_of(decorated())) == [FAST, INVARIANT, INVARIANT, FAST]
    assert context(runs_it(coroutine))() == f"{INVARIANT} and outside"
    with contextlib.closing(context(plainly(generator))()) as body:
        assert next(body) == INVARIANT and mode() == FAST


def test_generators_that_can_be_awaited() -> None:
    """Functions of ``types.coroutine``."""

    async def call() -> tuple[str, str]:
        return await use_custom_gemm(numerics=INVARIANT)(of_old)(), mode()

    @types.coroutine
    def of_old() -> Generator[None, None, str]:
        yield
        return mode()

    assert asyncio.run(call()) == (INVARIANT, FAST)


# Async generators


def test_an_async_generator_holds_while_it_runs() -> None:
    seen: list[Any] = []

    @use_custom_gemm(numerics=INVARIANT)
    async def steps(n: int) -> AsyncIterator[tuple[int, str]]:
        """Counts."""
        try:
            for i in range(n):
                await asyncio.sleep(0)
                got = yield i, mode()
                seen.append((got, mode()))
        except KeyError:
            await asyncio.sleep(0)
            yield -1, mode()
        finally:
            await asyncio.sleep(0)
            seen.append(mode())

    assert inspect.isasyncgenfunction(steps) and steps.__doc__ == "Counts."

    async def main() -> None:
        got = []
        async for pair in steps(3):
            assert mode() == FAST
            got.append(pair)
        assert got == [(i, INVARIANT) for i in range(3)]
        generator: Any = steps(5)
        assert await generator.asend(None) == (0, INVARIANT)
        assert await generator.asend("sent") == (1, INVARIANT)
        assert await generator.athrow(KeyError()) == (-1, INVARIANT)
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        closed: Any = steps(5)
        await closed.__anext__()
        await closed.aclose()
        failed: Any = steps(5)
        await failed.__anext__()
        with pytest.raises(ZeroDivisionError):
            await failed.athrow(ZeroDivisionError())
        dropped: Any = steps(5)
        await dropped.__anext__()
        del dropped
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert mode() == FAST
        left_to_the_loop.append(steps(5))
        await left_to_the_loop[0].__anext__()

    left_to_the_loop: list[Any] = []
    asyncio.run(main())
    assert (None, FAST) not in seen
    assert [entry for entry in seen if isinstance(entry, str)][:5] == [INVARIANT] * 5
    assert ("sent", INVARIANT) in seen


def test_async_generators_interleave_with_contexts_of_their_own() -> None:
    async def steps(expected: str) -> AsyncIterator[int]:
        with use_custom_gemm(float32="split"):
            for i in range(5):
                assert now() == (expected, "split")
                await asyncio.sleep(0)
                assert now() == (expected, "split")
                yield i

    async def consume(name: str) -> None:
        async for _ in use_custom_gemm(numerics=name)(steps)(name):
            assert now() == (FAST, "strict")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(consume(name) for name in (INVARIANT, STRICT, FAST) * 2))

    asyncio.run(main())


def test_an_event_loop_closes_async_generators_that_are_left() -> None:
    """At its end, in any order, and each body inside the context."""
    ends: list[str] = []
    faults: list[dict[str, Any]] = []

    @use_custom_gemm(numerics=INVARIANT)
    async def steps() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            ends.append(mode())

    kept = [steps() for _ in range(20)]

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
        for generator in kept:
            await anext(generator)

    asyncio.run(main())
    assert faults == [] and ends == [INVARIANT] * 20 and mode() == FAST


def test_an_async_context_manager() -> None:
    @contextlib.asynccontextmanager
    @use_custom_gemm(numerics=INVARIANT)
    async def session() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield mode()

    async def main() -> None:
        async with session() as seen:
            assert (seen, mode()) == (INVARIANT, FAST)
        with pytest.raises(KeyError):
            async with session():
                raise KeyError

    asyncio.run(main())


# `with` in any order


def test_with_in_coroutines_that_end_in_any_order() -> None:
    """What is active after each step follows from the entries that have not ended: the newest of them counts."""
    draw = random.Random(0)
    for _ in range(100):

        async def work(name: str) -> None:
            with use_custom_gemm(numerics=name):
                await pause()

        active: list[tuple[str, Any]] = []
        for _ in range(30):
            if active and draw.random() < 0.5:
                _, coroutine = active.pop(draw.randrange(len(active)))
                with contextlib.suppress(StopIteration):
                    coroutine.send(None)
            else:
                name = draw.choice(_native.NUMERICS)
                active.append((name, work(name)))
                active[-1][1].send(None)
            assert mode() == (active[-1][0] if active else FAST)
        draw.shuffle(active)
        for _, coroutine in active:
            coroutine.close()
        assert mode() == FAST


def test_reports_count_while_their_body_runs() -> None:
    """A report starts and stops with each piece, and does not count what others run in between."""
    context = use_custom_gemm()
    counting: list[int] = []

    @context
    def steps() -> Iterator[None]:
        for _ in range(3):
            yield

    for _ in steps():
        counting.append(context.report._context.exit())  # type: ignore[union-attr]
    assert counting == [False] * 3  # no entry is active between two pieces


# torch.compile


@pytest.mark.parametrize("around", [False, True])
def test_compiled_code_drives_and_is_driven(around: bool, fresh_dynamo: None) -> None:
    context = use_custom_gemm(numerics=INVARIANT)
    seen: list[str] = []

    @context
    def steps(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(3):
            seen.append(mode())
            x = work(x)
            yield x

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    work = add if around else torch.compile(add, backend="eager")

    def total(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(())
        for value in steps(x):
            y = y + value.sum()
        return y

    run = torch.compile(total, backend="eager") if around else total
    for _ in range(3):
        assert run(torch.zeros(2)).item() == 12
        assert mode() == FAST
    assert seen == [INVARIANT] * 9
