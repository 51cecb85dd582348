"""A thread that makes one call at a time, for what blocks: SQLite.

A pool of threads would do, but an operation waits for several calls in a row, and each would cost two futures and two
locks. Here a call is one entry of a queue, and one call back into the event loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Job: TypeAlias = Callable[[], None]


class StoreThread(Executor):
    """Calls are made in the order in which they come, from `call` and `submit` alike."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_shut = False

    def call(self, function: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Belongs to the event loop that is running: the result comes there."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                value = function(*args)
            except BaseException as error:  # the caller's affair, whatever it is
                _call_back(loop, _fail, result, error)
            else:
                _call_back(loop, _succeed, result, value)

        self._put(job)
        return result

    def submit(self, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        result: Future[T] = Future()

        def job() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(function(*args, **options))
            except BaseException as error:  # the caller's affair, whatever it is
                result.set_exception(error)

        self._put(job)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        self._is_shut = True
        if self._thread is not None:
            self._jobs.put(None)
            if wait:
                self._thread.join()

    def _put(self, job: _Job) -> None:
        if self._is_shut:
            raise RuntimeError("the thread is shut down")
        self._jobs.put(job)
        if self._thread is None:
            # A daemon: an agent that fails before it can shut this down must still end.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what the call holds must not stay until the next one


def _call_back(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(function, *args)


def _succeed(result: "asyncio.Future[T]", value: T) -> None:
    if not result.done():  # it may be cancelled
        result.set_result(value)


def _fail(result: "asyncio.Future[T]", error: BaseException) -> None:
    if not result.done():
        result.set_exception(error)
