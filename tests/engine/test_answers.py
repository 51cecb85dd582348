"""The answers to a request: each arrives once, in order, whether somebody waits for it or not."""

import asyncio

import pytest

from cheops.engine.events import Answer, Stage
from cheops.node.effects import Answers, PendingRequests


def answer(request: str, detail: str) -> Answer:
    return Answer(request, Stage.SITE, detail=detail)


def test_answers_arrive_in_order_before_and_while_somebody_waits() -> None:
    async def scenario() -> list[str]:
        pending = PendingRequests(lambda _resource, _op: None)
        with Answers(pending) as answers:
            for detail in ("first", "second"):
                pending.deliver(answer(answers.request, detail))
            seen = [await answers.next(), await answers.next()]
            waiting = asyncio.ensure_future(answers.next())
            await asyncio.sleep(0)  # it waits now
            for detail in ("third", "fourth"):
                pending.deliver(answer(answers.request, detail))
            seen += [await waiting, await answers.next()]
        assert not pending.open
        return [one.detail for one in seen]

    assert asyncio.run(scenario()) == ["first", "second", "third", "fourth"]


def test_an_answer_is_not_lost_with_a_wait_that_ends_as_it_arrives() -> None:
    async def scenario() -> str:
        pending = PendingRequests(lambda _resource, _op: None)
        with Answers(pending) as answers:
            waiting = asyncio.ensure_future(answers.next())
            await asyncio.sleep(0)
            pending.deliver(answer(answers.request, "late"))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return (await answers.next()).detail

    assert asyncio.run(scenario()) == "late"


def test_a_wait_that_is_over_does_not_prevent_the_next() -> None:
    async def scenario() -> str:
        pending = PendingRequests(lambda _resource, _op: None)
        with Answers(pending) as answers:
            now_s = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await answers.next(now_s)
            pending.deliver(answer(answers.request, "later"))
            return (await answers.next()).detail

    assert asyncio.run(scenario()) == "later"


def test_no_two_requests_have_one_id() -> None:
    pending = PendingRequests(lambda _resource, _op: None)
    assert Answers(pending).request != Answers(pending).request
