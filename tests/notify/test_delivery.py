"""Telling targets: in order, until each has it, and none waits for another."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cheops.backends.command.runner import CommandRunner
from cheops.config.address import Address
from cheops.config.notify import Channel, CommandConfig, EventKind, MailConfig, TargetConfig, WebhookConfig
from cheops.log.operation import Status
from cheops.notify.delivery import Delivery
from cheops.notify.event import Event, SiteResult
from cheops.notify.feed import Feed
from cheops.notify.journal import Journal
from cheops.notify.mail import MailSender
from cheops.notify.senders import CommandSender, DeliveryError, Sender
from cheops.notify.webhook import WebhookSender, webhook_session
from tests.notify.mail_server import MailServer
from tests.notify.receiver import Receiver, status


def event(number: int, **fields: Any) -> Event:
    given = {"kind": EventKind.RAN, "time": "2026-11-16T01:41:31.885Z", "site": "site1", "resource": "n"}
    return Event(id=f"ran:{number}", **{**given, **fields})


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def until(what: Callable[[], object]) -> None:
    for _ in range(6_000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


class Bench:
    """A journal, and deliveries from it that run until the end of the test."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.feed = Feed(journal, in_thread)
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, sender: Sender, channel: Channel | None = None, **settings: Any) -> Delivery:
        target = TargetConfig(name, channel or CommandConfig("true"), retry_most_s=0.05, **settings)
        delivery = Delivery(target, sender, self.journal, "site1", in_thread, self.feed)
        self.tasks.append(asyncio.create_task(delivery.run()))
        return delivery

    def happen(self, events: Iterable[Event]) -> None:
        self.journal.append(events)
        self.feed.announce()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def on_bench(path: Path, targets: list[str], test: Callable[[Bench], Awaitable[None]], **options: int) -> None:
    async def whole() -> None:
        with closing(Journal(path / "notify.db", **options)) as journal:
            journal.keep_targets(targets)
            bench = Bench(journal)
            try:
                await test(bench)
            finally:
                await bench.end()

    asyncio.run(whole())


class Recorder:
    """A sender that fails as it is told."""

    def __init__(self, failures: list[Exception] | None = None) -> None:
        self.failures = failures or []
        self.told: list[str] = []

    async def send(self, event: Event) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.told.append(event.id)


NUMBERS = [f"ran:{number}" for number in range(250)]


def test_order_is_kept_over_failures_also_of_our_own(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        sender = Recorder([DeliveryError("down"), RuntimeError("a mistake"), DeliveryError("down")])
        delivery = bench.add("t", sender)
        bench.happen(event(number) for number in range(250))
        await until(lambda: len(sender.told) == 250)
        assert sender.told == NUMBERS
        await until(lambda: bench.journal.cursor("t") == bench.journal.last)
        status = delivery.status
        assert (status.problem, status.failures_in_a_row, status.failing_since_ms) == ("", 0, None)
        assert (status.deliveries, status.failures, status.backlog) == (250, 3, 0)
        assert status.last_success_ms

    on_bench(tmp_path, ["t"], test)


def test_what_waits_is_counted_over_restarts(tmp_path: Path) -> None:
    """Numbers of events have gaps where an agent started again."""

    async def before(bench: Bench) -> None:
        delivery = bench.add("t", Recorder([DeliveryError("down")] * 1_000_000))
        bench.happen(event(number) for number in range(20))
        await until(lambda: delivery.status.failures)
        assert delivery.status.backlog == 20

    async def after(bench: Bench) -> None:
        delivery = bench.add("t", sender := Recorder([DeliveryError("down")] * 3))
        bench.happen(event(number) for number in range(20, 25))
        await until(lambda: delivery.status.failures)
        assert delivery.status.backlog == 25
        await until(lambda: len(sender.told) == 25)
        await until(lambda: delivery.status.backlog == 0)

    on_bench(tmp_path, ["t"], before)
    on_bench(tmp_path, ["t"], after)


def test_one_that_is_stuck_delays_nobody_else(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        stuck, well = Recorder([DeliveryError("down")] * 1_000_000), Recorder()
        delivery = bench.add("stuck", stuck)
        bench.add("well", well)
        bench.happen(event(number) for number in range(250))
        await until(lambda: well.told == NUMBERS)
        await until(lambda: delivery.status.failures > 3)
        assert delivery.status.problem == "down"
        assert delivery.status.failing_since_ms
        assert delivery.status.last_success_ms is None
        assert stuck.told == []
        assert delivery.status.backlog == 250

    on_bench(tmp_path, ["stuck", "well"], test)


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        sender = Recorder()
        bench.add("t", sender)
        bench.happen(event(number) for number in range(100))
        await until(lambda: bench.journal.cursor("t") == bench.journal.last)
        await bench.end()
        bench.happen(event(number) for number in range(100, 250))

    async def second(bench: Bench) -> None:
        sender = Recorder()
        bench.add("t", sender)
        await until(lambda: len(sender.told) == 150)
        assert sender.told == NUMBERS[100:]

    on_bench(tmp_path, ["t"], first)
    on_bench(tmp_path, ["t"], second)


def test_a_target_hears_when_too_much_waited_for_it(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for start in range(0, 5_000, 1_000):
            bench.happen(event(number) for number in range(start, start + 1_000))
        sender = Recorder()
        bench.add("t", sender)
        await until(lambda: len(sender.told) == 2_001)
        assert sender.told[0].startswith("dropped:site1/")
        assert sender.told[1:] == [f"ran:{number}" for number in range(3_000, 5_000)]

    on_bench(tmp_path, ["t"], test, kept=1_000, most_kept=2_000)


# -- web hooks -------------------------------------------------------------------------------------------


def test_a_slow_receiver_is_given_up_and_tried_again() -> None:
    async def test() -> None:
        with Receiver() as receiver:
            receiver.script = [receiver.slow, status(503)]
            async with webhook_session() as http:
                webhook = WebhookSender(WebhookConfig(receiver.url), 0.3, http)
                with pytest.raises(DeliveryError, match=r"no answer within 0\.3 s"):
                    await webhook.send(event(1))
                with pytest.raises(DeliveryError, match="it answered 503"):
                    await webhook.send(event(1))
                await webhook.send(event(1))
                assert [got.event["id"] for got in receiver.got] == ["ran:1"]
                assert "cheops-signature" not in receiver.got[0].headers
                receiver.down()
                with pytest.raises(DeliveryError, match=r"disconnected|connect"):
                    await webhook.send(event(2))

    asyncio.run(test())


def test_a_secret_that_cannot_be_read_is_said_and_can_be_put_right(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        with Receiver() as receiver:
            secret = tmp_path / "secret"
            async with webhook_session() as http:
                delivery = bench.add("t", WebhookSender(WebhookConfig(receiver.url, secret), 5, http))
                bench.happen([event(1)])
                await until(lambda: "No such file" in delivery.status.problem)
                secret.write_text("\n")
                await until(lambda: "must hold 1 to 4096 bytes" in delivery.status.problem)
                secret.write_text("s3cret\n")
                await until(lambda: receiver.got)
                assert receiver.got[0].event["teller"] == "site1"

    on_bench(tmp_path, ["t"], test)


# -- commands --------------------------------------------------------------------------------------------


def test_a_command_gets_the_event_in_a_file_and_cannot_be_led_astray(tmp_path: Path) -> None:
    async def test() -> None:
        out, again = tmp_path / "out", tmp_path / "again"
        odd = "x; touch /tmp/pwned `id` $(id) 'q' \"d\""
        script = f'[ -e {again} ] || {{ touch {again}; echo not yet; exit 3; }}; echo "$CHEOPS_EVENT_KIND $2" >> {out}; cat "$1" >> {out}'
        line = CommandConfig(f"sh -c '{script.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' - {{event}} __ID__")
        async with CommandRunner() as runner:
            command = CommandSender(line, 10, runner, tmp_path / "notify" / "t.json")
            with pytest.raises(DeliveryError, match="exit code 3: not yet"):
                await command.send(event(1, resource=odd))
            await command.send(event(1, resource=odd))
            missing = CommandSender(CommandConfig("/no/such/program"), 10, runner, tmp_path / "notify" / "t.json")
            with pytest.raises(DeliveryError, match="program"):
                await missing.send(event(1))
        first, body = out.read_text().split("\n", 1)
        assert first == f"ran {odd}"
        assert '"id":"ran:1"' in body
        assert (tmp_path / "notify" / "t.json").stat().st_mode & 0o777 == 0o600

    asyncio.run(test())


# -- mail ------------------------------------------------------------------------------------------------


def mail_config(server: MailServer, **fields: Any) -> MailConfig:
    return MailConfig(
        Address("127.0.0.1", server.port),
        "cheops@example.org",
        ("a@example.org", "b@example.org"),
        False,
        **fields,
    )


def test_mail_is_handed_over_in_order_when_the_server_takes_it(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        password = tmp_path / "password"
        password.write_text("pw\n")
        async with MailServer() as server:
            server.script = ["451 later", "550 never"]
            bench.add("t", MailSender(mail_config(server, user="u", password_file=password), 5, "site1"))
            results = (SiteResult("site1", Status.OK), SiteResult("site2", Status.KO, "exit code 1"))
            bench.happen([event(1), event(2, results=results, status=Status.KO, resource="n\r\nBcc: x@y")])
            await until(lambda: len(server.taken) == 2)
            (_, to, first), (_, _, second) = server.taken
            assert to == ["a@example.org", "b@example.org"]
            assert server.logins[0]
            assert first["Subject"] == "[cheops] ran n"
            assert first["Message-ID"] != second["Message-ID"]
            assert second["Bcc"] is None
            text = second.get_body()
            assert text is not None
            assert "site2: KO exit code 1" in text.get_content()
            (attached,) = second.iter_attachments()
            assert b'"id": "ran:2"' in attached.get_payload(decode=True)

    on_bench(tmp_path, ["t"], test)


def test_one_refused_recipient_does_not_keep_mail_from_the_others() -> None:
    async def test() -> None:
        async with MailServer() as server:
            mail = MailSender(mail_config(server), 5, "site1")
            server.refuse = {"a@example.org"}
            await mail.send(event(1))
            assert [to for _, to, _ in server.taken] == [["b@example.org"]]
            server.refuse |= {"b@example.org"}
            with pytest.raises(DeliveryError, match="nobody here"):
                await mail.send(event(2))
        with pytest.raises(DeliveryError, match="refused"):
            await mail.send(event(2))

    asyncio.run(test())
