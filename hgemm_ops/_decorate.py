"""``@use_custom_gemm()``: functions whose bodies run inside a context.

The body of a generator or coroutine runs piece by piece. Each piece runs inside the context. While the body is
suspended, the context is left, so that it does not apply to whoever runs meanwhile. So are the contexts that the body
itself has entered and not left yet. The next piece enters them again.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from . import _native

#: Starts a call of a decorated generator or coroutine function. It is held until the call ends.
Open = Callable[[], AbstractContextManager["Pieces"]]


class Pieces:
    """Around each piece of one body, with ``with``."""

    def __init__(self, span: _native.Span | None) -> None:
        self._span = span  # None where torch's matmuls cannot be overridden

    def __enter__(self) -> None:
        if self._span is not None:
            self._span.resume()

    def __exit__(self, *error: object) -> None:
        if self._span is not None:
            self._span.suspend()


class _Body(Generator[Any, Any, Any]):
    """A generator, or a coroutine, each of whose pieces runs inside ``pieces``."""

    def __init__(self, body: Any, pieces: Pieces) -> None:
        self._body, self._pieces = body, pieces

    def send(self, value: Any) -> Any:
        with self._pieces:
            return self._body.send(value)

    def throw(self, *error: Any) -> Any:
        with self._pieces:
            return self._body.throw(*error)

    def close(self) -> None:
        with self._pieces:
            self._body.close()

    def __await__(self) -> _Body:
        return self


def refuse(function: Any) -> None:
    """Raises TypeError if ``function`` cannot be decorated."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, type):
        raise TypeError(
            f"use_custom_gemm: {name} is a class: it is not clear whether its construction or its methods should run "
            "in the context. Decorate its methods, or use `with use_custom_gemm():`"
        )
    if not callable(function):
        raise TypeError(f"use_custom_gemm: expected a function, got {type(function).__name__} {name}")


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether a function, or an object's ``__call__``, is of a kind that ``inspect`` knows."""
    while isinstance(function, functools.partial):
        function = function.func
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004


def _is_iterable_coroutine(function: Any) -> bool:
    """Whether ``types.coroutine`` has made a generator function one whose generators can be awaited."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _may_return_body(function: Any) -> bool:
    """Whether another decorator made a plain function of a generator or coroutine function, as torch.no_grad() does."""
    inner = inspect.unwrap(function)
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return inner is not function and any(_is(kind, inner) for kind in kinds)


def decorate(function: Callable[..., Any], context: AbstractContextManager[Any], open_: Open) -> Callable[..., Any]:
    """Returns a function of the same kind whose body runs inside the context."""
    wrapper: Callable[..., Any]
    if _is(inspect.isasyncgenfunction, function):
        wrapper = _async_generator(function, open_)
    elif _is(inspect.iscoroutinefunction, function):
        wrapper = _coroutine(function, open_)
    elif _is(inspect.isgeneratorfunction, function):
        wrapper = _generator(function, open_)
        if _is_iterable_coroutine(function):
            wrapper = types.coroutine(wrapper)
    elif _may_return_body(function):
        wrapper = _returning_body(function, context, open_)
    else:
        wrapper = _plain(function, context)
    # A callable object's attributes are its own.
    updated = functools.WRAPPER_UPDATES if inspect.isroutine(function) else ()
    return functools.update_wrapper(wrapper, function, updated=updated)


def _plain(function: Callable[..., Any], context: AbstractContextManager[Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return wrapper


def _returning_body(
    function: Callable[..., Any], context: AbstractContextManager[Any], open_: Open
) -> Callable[..., Any]:
    kinds: dict[type, Callable[..., Any]] = {
        types.GeneratorType: _generator,
        types.CoroutineType: _coroutine,
        types.AsyncGeneratorType: _async_generator,
    }

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            result = function(*args, **kwargs)
        kind = kinds.get(type(result))
        return result if kind is None else kind(lambda: result, open_)()

    return wrapper


def _generator(function: Callable[..., Generator[Any, Any, Any]], open_: Open) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with open_() as pieces:
            body = _Body(function(*args, **kwargs), pieces)
            piece = functools.partial(body.send, None)
            while True:  # and not `yield from`, which closes the body where it should throw GeneratorExit
                try:
                    yielded = [piece()]
                except StopIteration as end:
                    return end.value
                del piece  # it may refer to the exception that was thrown
                try:
                    sent = yield yielded.pop()  # nothing here keeps what was yielded
                except BaseException as error:
                    piece = functools.partial(body.throw, error)
                else:
                    piece = functools.partial(body.send, sent)
                    del sent

    return wrapper


def _coroutine(function: Callable[..., Awaitable[Any]], open_: Open) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with open_() as pieces:
            return await _Body(call(*args, **kwargs), pieces)

    return wrapper


def _async_generator(function: Callable[..., AsyncGenerator[Any, Any]], open_: Open) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with open_() as pieces:
            body = function(*args, **kwargs)
            # An event loop that shuts down closes all generators it has heard of, in any order. It must not close the
            # body beside its wrapper, which closes it itself.
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(None, None)
            try:
                piece = body.asend(None)
            finally:
                sys.set_asyncgen_hooks(*hooks)
            while True:
                try:
                    yielded = [await _Body(piece, pieces)]
                except StopAsyncIteration:
                    return
                del piece
                try:
                    sent = yield yielded.pop()
                except BaseException as error:
                    piece = body.athrow(error)
                else:
                    piece = body.asend(sent)
                    del sent

    return wrapper
