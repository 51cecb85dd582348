"""Flows without HAProxy: what may be one, when it leaves, and what HAProxy is told of it."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.config.address import Address
from cheops.config.gateway import ForwardedHeaders
from cheops.config.site import read_site
from cheops.gateway.connection import UpstreamAddress
from cheops.gateway.haproxy import flows as haproxy_flows
from cheops.gateway.haproxy import process
from cheops.gateway.haproxy.configuration import MASTER, render
from cheops.gateway.haproxy.counters import parse_request_line
from cheops.gateway.haproxy.flows import (
    MAX_SPELLINGS,
    VARYING_S,
    Flow,
    FlowKey,
    FlowKind,
    FlowTable,
    FlowTarget,
    RouteWatch,
    flow_target,
    owner_of,
)
from cheops.gateway.haproxy.handover import original_request
from cheops.gateway.haproxy.layout import (
    Layout,
    PeerLayout,
    ServiceLayout,
    key_of,
    peer_layout,
    scope_of_key,
    slug,
    value_of,
)
from cheops.gateway.haproxy.process import HaproxyError
from cheops.gateway.haproxy.runtime import RuntimeSocket
from cheops.gateway.headers import ForwardingInfo, RequestHead, headers_for_upstream
from cheops.gateway.interfaces import NoGatewayError
from cheops.gateway.peers import PeerGateways
from cheops.gateway.routing import Decision, Forward, InTurn, Local, Replicate, resolve_route
from cheops.node.node import Node
from cheops.peers.heartbeat import SiteRecord
from cheops.scope.functions import BUILTIN
from cheops.scope.parser import parse
from cheops.scope.route import Replicas
from cheops.scope.snapshot import SiteInfo, Snapshot

CONFIG = """
site: here
security: none
services: {image: {url: "http://127.0.0.1:1", listen: "127.0.0.1:2"}}
gateway: {data_plane: %s}
"""
AND = Replicate(Replicas(("a", "b")))


@pytest.mark.parametrize(
    ("decision", "target"),
    [
        (Local(), FlowTarget(FlowKind.LOCAL, None)),
        (Forward("up"), FlowTarget(FlowKind.FORWARD, "up")),
        (Forward("down"), None),  # the agent says so, and since when
        (AND, None),
        (InTurn((Local(), Forward("down"))), FlowTarget(FlowKind.IN_TURN, None)),
        (InTurn((Forward("up"), Local())), FlowTarget(FlowKind.IN_TURN, "up")),
        (InTurn((Forward("down"), Forward("up"))), None),
        (InTurn((AND, Local())), None),
    ],
)
def test_what_may_be_a_flow(decision: Decision, target: FlowTarget | None) -> None:
    assert flow_target(decision, lambda site: site == "up") == target


@pytest.mark.parametrize(("plane", "is_there", "found"), [
    ("auto", True, "/haproxy"), ("auto", False, None), ("haproxy", True, "/haproxy"), ("builtin", True, None),
])  # fmt: skip
def test_who_forwards(
    plane: str, is_there: bool, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "program", lambda: "/haproxy" if is_there else None)
    monkeypatch.setattr(process, "_version_of", lambda _path: (2, 6))
    (tmp_path / "site.yaml").write_text(CONFIG % plane)
    assert process.choose_program(read_site(tmp_path / "site.yaml")) == found


def test_an_haproxy_that_is_wanted_and_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "program", lambda: None)
    (tmp_path / "site.yaml").write_text(CONFIG % "haproxy")
    with pytest.raises(HaproxyError, match="it is not installed: install HAProxy"):
        process.choose_program(read_site(tmp_path / "site.yaml"))


def flow(site: str) -> Flow:
    return Flow(FlowTarget(FlowKind.FORWARD, site), parse(site), frozenset({site}))


def test_what_was_decided_before_a_withdrawal_is_not_installed_after_it() -> None:
    table = FlowTable(10)
    decided = table.generation
    assert table.install("image", "a", flow("a"), decided) == []
    assert table.withdraw(lambda _service, one: "a" in one.sites) == [("image", "a")]
    assert table.install("image", "a", flow("a"), decided) is None
    assert table.get("image", "a") is None
    assert table.install("image", "a", flow("a"), table.generation) == []


def test_the_least_recently_used_leave() -> None:
    table = FlowTable(2)
    table.install("image", "a", flow("a"), 0)
    table.install("image", "b", flow("b"), 0)
    table.used("image", "a")
    assert table.install("image", "c", flow("c"), 0) == [("image", "b")]
    assert [key for key, _ in table.items()] == [("image", "a"), ("image", "c")]


class Watched:
    """A watch of the routes of a site, and how often it decides one again. Time passes by `tick` only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, flows: int) -> None:
        self.table, self.taken_out, self.decided, self.now_s = FlowTable(flows), list[FlowKey](), 0, 0.0
        self.measure(5.0)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(haproxy_flows, "resolve_route", self._resolve)
        node = SimpleNamespace(snapshot=lambda: self.snapshot, mesh=SimpleNamespace(entry_of=lambda _site: None))
        peers = SimpleNamespace(is_up=lambda _site: True)
        self.watch = RouteWatch(
            cast("Node", node), BUILTIN, cast("PeerGateways", peers), self.table, self.taken_out.extend
        )
        self.watch.begin()
        for number in range(flows):
            scope = parse(f"around(here, {number + 10}ms)")
            one = Flow(FlowTarget(FlowKind.IN_TURN, None), scope, frozenset({"here"}), is_varying=True)
            self.table.install("image", str(number), one, 0, now_s=self.now_s)

    def measure(self, rtt_ms: float) -> None:
        sites = {name: SiteInfo(name, frozenset({"image"})) for name in ("here", "near")}
        self.snapshot = Snapshot("here", sites, {frozenset(sites): rtt_ms})

    def _resolve(self, *arguments: Any) -> Any:
        self.decided += 1
        return resolve_route(*arguments)

    def tick(self, times: int) -> int:
        """How many routes are decided meanwhile."""
        before = self.decided
        for _ in range(times):
            self.now_s += 0.2
            self.watch.refresh()
        return self.decided - before


def test_flows_that_depend_on_distances_cost_nothing_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 500)
    assert watched.tick(50) == 500, "each once: nothing was measured since"
    watched.measure(6.0)
    assert watched.tick(1) == 100, "not all at once"
    assert watched.tick(20) == 400
    assert watched.taken_out == []
    watched.now_s = VARYING_S
    assert watched.tick(1) == 0
    assert (len(watched.taken_out), len(watched.table), watched.table.varying) == (500, 0, [])
    watched.measure(7.0)
    assert watched.tick(1_000) == 0


def test_flows_whose_distances_have_changed_are_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 20)
    watched.tick(1)
    watched.measure(19.5)  # more than around(here, 10ms) to around(here, 19ms)
    watched.tick(1)
    assert watched.taken_out == [("image", str(number)) for number in range(10)]


def install(table: FlowTable, client: str, *scopes: str) -> None:
    for text in scopes:
        table.install("image", key_of(text), flow("s"), table.generation, client)


def texts(table: FlowTable) -> list[str]:
    return [scope_of_key(key) for (_, key), _ in table.items()]


def scoped(number: int) -> Flow:
    return Flow(FlowTarget(FlowKind.FORWARD, "s"), parse(f"site{number}"), frozenset({"s"}))


def test_a_client_that_makes_up_scopes_pushes_out_its_own_flows_only() -> None:
    table = FlowTable(10)
    for number in range(4):
        table.install("image", f"of-{number}", scoped(number), 0, f"10.0.0.{number}")
    for number in range(100, 200):
        table.install("image", f"made-up-{number}", scoped(number), 0, "10.0.0.99")
    kept = [key for (_, key), _ in table.items()]
    assert kept == [*(f"of-{number}" for number in range(4)), *(f"made-up-{number}" for number in range(194, 200))]


def test_one_machine_with_many_addresses_is_one_client() -> None:
    table = FlowTable(4)
    table.install("image", "other", scoped(0), 0, "2001:db8:1::1")
    for number in range(1, 20):
        table.install("image", f"made-up-{number}", scoped(number), 0, f"2001:db8:2::{number:x}")
    assert ("image", "other") in dict(table.items())
    assert owner_of("fe80::1%eth0") == owner_of("fe80::2%eth0") == "fe80::"
    assert owner_of("10.0.0.1") == "10.0.0.1"
    assert owner_of("::ffff:10.0.0.1") == "::ffff:10.0.0.1"
    assert owner_of("not:an:address") == "not:an:address"


def test_of_one_scope_only_some_spellings_are_kept_and_those_of_others_stay() -> None:
    table = FlowTable(1_000)
    install(table, "10.0.0.1", "s", "(s)")
    install(table, "10.0.0.99", *(f"s{' ' * number}" for number in range(1, 100)))
    assert len(texts(table)) == MAX_SPELLINGS
    assert {"s", "(s)"} <= set(texts(table))


@given(
    st.lists(
        st.tuples(st.sampled_from(["install", "used", "drop"]), st.integers(0, 11), st.integers(0, 3)), max_size=80
    )
)
def test_the_table_knows_whose_flows_it_has(steps: list[tuple[str, int, int]]) -> None:
    table = FlowTable(5)
    model: dict[tuple[str, str], str] = {}
    for step, number, client in steps:
        key = ("image", f"k{number}")
        if step == "install":
            left = table.install(*key, scoped(number % 6), table.generation, f"10.0.0.{client}")
            assert left is not None
            model[key] = f"10.0.0.{client}"
            counts = Counter(model.values())
            for one in left:
                assert counts[model.pop(one)] == max(counts.values())
                counts = Counter(model.values())
            assert key in model
        elif step == "used":
            table.used(*key)
        else:
            table.drop([key])
            model.pop(key, None)
        assert set(dict(table.items())) == set(model)
        assert len(table) <= 5


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), min_size=1))
def test_a_key_is_one_word_and_stands_for_one_text(text: str) -> None:
    key = key_of(text)
    assert scope_of_key(key) == text
    assert not set(key) & set(" \t|*,;")
    assert value_of("own.x", text, "b").split("|") == ["own.x", key, "b"]


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_that_differ_stay_different(one: str, other: str) -> None:
    assert (slug(one) == slug(other)) is (one == other)
    assert all(c.isascii() and (c.isalnum() or c in "_-") for c in slug(one))


def test_what_was_added_on_the_way_is_taken_off_again() -> None:
    sent = RequestHead(
        "GET", "/x?y", (("Host", "h"), ("Via", "1.0 edge"), ("X-Forwarded-For", "10.0.0.1"), ("Scope", "a"))
    )
    forwarding = ForwardingInfo("site1", "10.0.0.2", headers=ForwardedHeaders.ALL)
    on_the_way = headers_for_upstream(sent, forwarding, upgrade=None)
    # HAProxy adds lines of its own, and leaves those that are there.
    added = (("via", "1.1 cheops-site1"), ("forwarded", "for=10.0.0.2"), ("x-forwarded-for", "10.0.0.2"))
    tried = RequestHead("GET", "/base/x?y", (*sent.headers, *added, ("cheops-hop", "site1")))
    found = original_request(tried, "site1", "/base", ForwardedHeaders.ALL)
    assert found == sent
    assert headers_for_upstream(found, forwarding, upgrade=None) == on_the_way


def test_names_cannot_break_out_of_the_configuration() -> None:
    """Names of sites and services are nearly free text."""
    evil = 'x"\nglobal\n  chroot / # %[env(HOME)] $HOME'
    service = ServiceLayout(
        evil,
        Address("127.0.0.1", 80),
        UpstreamAddress("127.0.0.1", 81, path='/a"b%c'),
        1.0,
        ("X-A.b",),
        outbound=Address("::1", 83),
    )
    carriers = ("x'$HOME#|%",)
    text = render(Layout(evil, (service,), (PeerLayout(evil, evil, UpstreamAddress("::1", 82)),), carriers=carriers))
    assert "chroot /" not in text
    assert "env(" not in text
    assert text.count("\nglobal\n") == 1
    assert text.lower().count("$home") == text.lower().count("\\$home") == 1


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1 redir http://x :1", "https://x:99999", "https://x\n  server y", "https://[::1", "x"]
)
def test_an_address_that_is_none_gets_no_backend(url: str) -> None:
    """The mesh refuses such a record; if one came through, its site alone would be out of reach."""
    records = {"bad": SiteRecord("bad", "1", "http://x", services=(("image", url),))}
    records["good"] = SiteRecord("good", "1", "http://y", services=(("image", "http://127.0.0.1:7"),))
    node = SimpleNamespace(mesh=SimpleNamespace(entry_of=records.get), keyring=None)
    peers = PeerGateways(cast("Node", node))
    assert peer_layout(peers, None, "image", "bad") is None
    assert peer_layout(peers, None, "image", "good") == PeerLayout("image", "good", UpstreamAddress("127.0.0.1", 7))
    with pytest.raises(NoGatewayError, match="the address of bad for 'image' cannot be used"):
        peers.address("bad", "image")


def test_an_answer_of_haproxy_may_come_in_pieces(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        for number in range(3):
            writer.write(f"{number}\n".encode() * 1_000)
            await writer.drain()
            await asyncio.sleep(0.01)  # so that they do not come at once
        writer.close()

    async def whole() -> str:
        async with await asyncio.start_unix_server(answer, tmp_path / MASTER):
            return await RuntimeSocket(tmp_path).command("show map image.map")

    assert asyncio.run(whole()) == "0\n" * 1_000 + "1\n" * 1_000 + "2\n" * 1_000


def test_a_line_of_the_ring() -> None:
    line = "1794824578169 5 image to.image.s2 first 200 60 GET %7Bimage%3A%20s2%7D %2Fv2%2Fx"
    found = parse_request_line(line)
    assert found
    assert (found.at_ms, found.status, found.path) == (1794824578169, 200, "/v2/x")
    assert parse_request_line(line[:40]) is None
