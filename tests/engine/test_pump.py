"""The pump goes on, whatever an event or a document is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cheops.engine import exchange
from cheops.engine.documents import Message
from cheops.engine.events import (
    Answer,
    Fault,
    Notify,
    Outcome,
    Ran,
    Received,
    Restart,
    Result,
    Run,
    Save,
    Send,
    Stage,
    StoreOutdated,
    Submitted,
)
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.errors import CheopsError
from cheops.log.causality import Clock
from cheops.log.operation import Command, Origin
from cheops.node.pump import Pump
from cheops.node.store_thread import StoreThread
from cheops.store.codec import MAX_DOCUMENT_BYTES
from cheops.store.interface import DamagedError
from cheops.store.memory import MemoryStore


class Recorder:
    """Carries out effects: each run succeeds at once, with the output that the test wants."""

    def __init__(self) -> None:
        self.pump: Pump
        self.output = ""
        self.answers: list[Answer] = []
        self.faults: list[Fault] = []
        self.damage: list[DamagedError] = []

    def run(self, effect: Run) -> None:
        outcomes = (Outcome(Result.OK, self.output),) * len(effect.steps)
        asyncio.get_running_loop().call_soon(self.pump.post, Ran(effect.resource, effect.n, outcomes))

    def send(self, effect: Send) -> None:
        pass

    def answer(self, effect: Answer) -> None:
        self.answers.append(effect)

    def notify(self, effect: Notify) -> None:
        pass

    def restart(self, effect: Restart) -> None:
        pass

    def fault(self, effect: Fault) -> None:
        self.faults.append(effect)

    def damaged(self, error: DamagedError) -> None:
        self.damage.append(error)

    def committed(self, saves: list[Save], last_seq: int) -> None:
        pass


def driven(dialogue: Callable[[Pump, Recorder], Awaitable[None]]) -> None:
    async def drive() -> None:
        recorder = Recorder()
        with StoreThread("store") as thread:
            pump = Pump(Site(Origin("a", "1"), Settings()), MemoryStore(), recorder, thread)
            recorder.pump = pump
            running = asyncio.ensure_future(pump.run())
            await dialogue(pump, recorder)
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            pump.close()

    asyncio.run(drive())


def submit(pump: Pump, request: str, resource: str) -> None:
    pump.post(Submitted(request, resource, "inc", Command("inc"), sites=("a", "b")))


async def answered(pump: Pump, recorder: Recorder, request: str, stage: Stage) -> Answer:
    for _ in range(1_000):
        for answer in recorder.answers:
            if (answer.request, answer.stage) == (request, stage):
                return answer
        await pump.flushed()
        await asyncio.sleep(0.002)
    raise AssertionError(f"{request} was never answered: {recorder.answers}")


def test_a_document_that_cannot_be_stored_fails_its_request_and_no_other() -> None:
    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        recorder.output = "x" * (MAX_DOCUMENT_BYTES + 1)  # no reply can hold that
        submit(pump, "large", "one")
        refused = await answered(pump, recorder, "large", Stage.REFUSED)
        assert "nothing was done" in refused.detail
        recorder.output = "fine"
        submit(pump, "small", "two")
        assert (await answered(pump, recorder, "small", Stage.DECIDED)).output == "fine"
        assert recorder.faults
        assert {fault.resource for fault in recorder.faults} == {"one"}
        assert pump.trouble is None
        # What was durable of the resource is there again: the operation, in doubt because its run was not recorded.
        replica = await pump.replica("one")
        assert [draft.seq for draft in replica.drafts] == [1]
        assert replica.applied.unknown is not None

    driven(dialogue)


def test_an_event_that_fails_does_not_end_the_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise OverflowError("planted")

    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        submit(pump, "first", "one")
        await answered(pump, recorder, "first", Stage.DECIDED)
        with monkeypatch.context() as planted:
            planted.setattr(exchange, "take", broken)
            pump.post(Received("b", Message("one", "1")))
        await pump.flushed()
        (fault,) = recorder.faults
        assert str(fault.error) == "planted"
        submit(pump, "second", "one")
        await answered(pump, recorder, "second", Stage.DECIDED)

    driven(dialogue)


def test_who_waits_for_the_pump_gets_through_even_if_another_one_has_left() -> None:
    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        submit(pump, "first", "one")
        leaving, staying = (asyncio.ensure_future(pump.flushed()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait_for(staying, 30)
        await answered(pump, recorder, "first", Stage.DECIDED)  # the pump goes on

    driven(dialogue)


def test_a_handler_that_fails_does_not_end_the_pump() -> None:
    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        def broken(_effect: Send) -> None:
            raise ValueError("planted")

        recorder.send = broken  # type: ignore[assignment, method-assign]
        submit(pump, "first", "one")
        await answered(pump, recorder, "first", Stage.DECIDED)
        await pump.flushed()
        assert [str(fault.error) for fault in recorder.faults] == ["planted"]

    driven(dialogue)


def test_a_handler_of_commits_that_fails_does_not_end_the_pump() -> None:
    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        def broken(_saves: list[Save], _last_seq: int) -> None:
            raise ValueError("planted")

        recorder.committed = broken  # type: ignore[assignment, method-assign]
        submit(pump, "first", "one")
        await answered(pump, recorder, "first", Stage.DECIDED)
        await pump.flushed()
        assert {str(fault.error) for fault in recorder.faults} == {"planted"}

    driven(dialogue)


def test_a_resource_that_cannot_be_loaded_is_an_error_and_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dialogue(pump: Pump, recorder: Recorder) -> None:
        def broken(*_args: Any) -> None:
            raise OverflowError("planted")

        monkeypatch.setattr("cheops.engine.ledger.load", broken)
        with pytest.raises(CheopsError, match="cannot be used"):
            await asyncio.wait_for(pump.replica("one"), 10)
        assert recorder.faults

    driven(dialogue)


def test_who_waits_for_a_resource_hears_that_the_site_starts_again() -> None:
    async def dialogue(pump: Pump, _recorder: Recorder) -> None:
        waiting = asyncio.ensure_future(pump.replica("n"))
        await asyncio.sleep(0)
        pump.post(StoreOutdated("b has seen a later state of it", Clock(1)))
        late = asyncio.ensure_future(pump.replica("m"))
        for one in (waiting, late):
            with pytest.raises(CheopsError, match="starts again") as caught:
                await one
            assert caught.value.status == 503

    driven(dialogue)
