"""An event loop in the simulator's virtual time, for production code that awaits.

It has what tasks, futures, locks and timeouts need. It reads no files and no sockets, and no callback waits for real
time: the world runs each when its moment has come.
"""

# ruff: noqa: SLF001 - asyncio gives these functions, with an underscore, to those who write an event loop
import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import ceil
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")
Schedule = Callable[[int, Callable[[], None]], None]  # a delay in ms, and what to do then


class VirtualLoop(asyncio.AbstractEventLoop):
    """`now_ms` and `after` are those of the world. `errors` holds what tasks raised: a fault like any other."""

    def __init__(self, now_ms: Callable[[], int], after: Schedule) -> None:
        self._now_ms = now_ms
        self._after = after
        self.errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self._now_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._after(0, lambda: self._run(handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._after(max(0, ceil((when - self.time()) * 1000)), lambda: self._run(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio. A cancelled callback stays in the world's queue, and does nothing."""

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_all(self) -> None:
        """Cancel all tasks. They end in the callbacks that this schedules."""
        for task in self._tasks:
            task.cancel()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(context["message"]))

    def start(self, coro: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run something by itself. What it raises is an error of the simulated program."""
        task: asyncio.Task[object] = self.create_task(coro)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)
