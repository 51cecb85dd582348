"""What becomes of HTTP requests whose effect is unknown, and of those that come at the same time: found by histories
of the simulator, and played here by hand."""

from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.payload import request_of
from cheops.engine.status import Overall, status
from cheops.errors import ClientError
from cheops.log.operation import OpId
from cheops.sim.http_service import ModelService, Notes
from cheops.sim.http_world import Fate, HttpWorld, Sent
from cheops.sim.workload import PROFILES

BOTH = ("site1", "site2")


class HandWorld(HttpWorld):
    """Two or three sites without faults, except those that a test wants."""

    def __init__(self, sites: tuple[str, ...] = BOTH) -> None:
        # Of the next requests, by the number of a site.
        self.fates: dict[int, deque[Fate]] = {number: deque() for number in range(len(sites))}
        self.sites = sites
        super().__init__(1, sites, replace(PROFILES["calm"], http=True, operations=20))

    def draw_fate(self, service: ModelService) -> Fate:
        if self.now_ms < service.down_until_ms:
            return Fate.REFUSED
        fates = self.fates[service.number]
        return fates.popleft() if fates else Fate.ANSWERED

    def begin(self, site: str, service: str, method: str, path: str, content: dict[str, Any], **more: Any) -> Sent:
        sent = Sent(len(self.sent), site, service, method, path, content, self.sites, **more)
        self.loop.start(self.request(sent, msgspec.json.encode(content) if content else b""))
        return sent

    def ask(self, *args: Any, **more: Any) -> Sent:
        sent = self.begin(*args, **more)
        self.pass_s(5)
        return sent

    def finish(self, coro: Coroutine[Any, Any, object]) -> None:
        task = self.loop.create_task(coro)
        self.pass_s(1)
        task.result()

    def pass_s(self, seconds: int) -> None:
        self.run_until(self.now_ms + seconds * 1_000)

    def entries(self, service: str) -> list[list[str]]:
        return [sorted(self.services[site, service].entries) for site in BOTH]

    def overall(self, resource: str) -> list[Overall]:
        self.refresh()
        self.pass_s(2)
        replicas = [self.nodes[site].replica(resource) for site in self.sites]
        return [status(replica, set(self.sites)).overall for replica in replicas if replica]

    def unknown(self, site: str, resource: str) -> OpId | None:
        replica = self.nodes[site].replica(resource)
        return replica.applied.unknown.id if replica and replica.applied.unknown else None

    def restart_after_crash(self, site: str) -> None:
        self.crash(site, 100)
        self.pass_s(5)


@pytest.fixture
def world() -> Iterator[HandWorld]:
    world = HandWorld()
    yield world
    assert world.loop.errors == []
    world.close()


def note(world: HandWorld) -> str:
    return world.ask("site1", "notes", "POST", "/notes", {"text": "x"}).resource


def test_a_deletion_that_was_done_without_an_answer_is_done_everywhere(world: HandWorld) -> None:
    resource = note(world)
    world.fates[0].append(Fate.DONE)
    sent = world.ask("site1", "notes", "DELETE", f"/notes/{resource}", {})
    assert sent.status == 200
    assert world.entries("notes") == [[], []]
    assert world.overall(resource) == [Overall.CONVERGED] * 2


def test_a_deletion_of_a_part_that_was_done_without_an_answer_is_done_everywhere(world: HandWorld) -> None:
    resource = note(world)
    world.ask("site1", "notes", "PUT", f"/notes/{resource}/tags/red", {"value": "y"})
    world.fates[0].append(Fate.DONE)
    assert world.ask("site1", "notes", "DELETE", f"/notes/{resource}/tags/red", {}).status == 200
    assert world.entries("notes") == [["/notes/1"], ["/notes/41"]]


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.LOST])
def test_a_deletion_reaches_what_was_created_without_an_answer(world: HandWorld, fate: Fate) -> None:
    world.ask("site1", "store", "PUT", "/b", {"made": "x"})
    world.fates[1] += [fate, *[Fate.REFUSED] * 20]
    created = world.begin("site1", "store", "PUT", "/b/k", {"value": "y"})
    world.run_until(world.now_ms + 60)
    world.begin("site1", "store", "DELETE", "/b/k", {})
    world.run_until(world.now_ms + 60)
    world.fates[1].clear()
    world.pass_s(10)
    assert world.entries("store") == [["/b"], ["/b"]]
    assert world.overall(created.resource) == [Overall.CONVERGED] * 2


def test_a_deletion_reaches_what_was_created_when_the_agent_stopped(world: HandWorld) -> None:
    world.ask("site1", "store", "PUT", "/b", {"made": "x"})
    resource = world.begin("site1", "store", "PUT", "/b/k", {"value": "y"})
    while "/b/k" not in world.services["site2", "store"].entries:
        world.run_until(world.now_ms + 1)
    world.crash("site2", 100)
    world.fates[1] += [Fate.REFUSED] * 20
    world.ask("site1", "store", "DELETE", "/b/k", {})
    world.fates[1].clear()
    world.pass_s(10)
    assert world.entries("store") == [["/b"], ["/b"]]
    assert world.overall(resource.resource) == [Overall.CONVERGED] * 2


def test_a_deletion_spares_what_was_not_created_by_this_site(world: HandWorld) -> None:
    """The creation never reached the service, and somebody else has put something there."""
    world.ask("site1", "store", "PUT", "/b", {"made": "x"})
    world.fates[1] += [Fate.REFUSED] * 20
    resource = world.begin("site1", "store", "PUT", "/b/k", {"value": "y"})
    world.run_until(world.now_ms + 60)
    world.begin("site1", "store", "DELETE", "/b/k", {})
    world.run_until(world.now_ms + 60)
    world.services["site2", "store"].entries["/b/k"] = {"value": "theirs"}
    world.fates[1].clear()
    world.pass_s(10)
    assert world.entries("store") == [["/b"], ["/b", "/b/k"]]
    assert not world.agents["site2"].backend.copies.may_have_created(resource.resource)


def test_a_deletion_that_finds_nothing_is_refused_if_it_was_sent_once(world: HandWorld) -> None:
    resource = note(world)
    assert world.ask("site1", "notes", "DELETE", f"/notes/{resource}/tags/red", {}).status == 404


def test_who_may_not_see_a_thing_does_not_delete_it_after_a_lost_request(world: HandWorld) -> None:
    """The service answers 404 to such a client, and this site sees with its own credentials that it is there."""

    def do(self: Notes, method: str, *more: Any) -> Any:
        return (404, {}) if method == "DELETE" else true_do(self, method, *more)

    true_do = Notes.do
    resource = note(world)
    world.fates[0].append(Fate.LOST)
    with patch.object(Notes, "do", do):
        world.ask("site1", "notes", "DELETE", f"/notes/{resource}", {})
    assert world.entries("notes") == [["/notes/1"], ["/notes/41"]]
    assert world.unknown("site1", resource)  # and nobody takes it for void: the lost request may have had an effect
    assert Overall.CONVERGED not in world.overall(resource)[:1]


def test_a_change_whose_credentials_were_lost_while_it_ran_is_unknown(world: HandWorld) -> None:
    resource = meta_id_of("path", "kv", "/$.key/a")
    world.begin("site1", "kv", "POST", "/kv/put", {"key": "a", "value": 1}, has_credentials=True)
    while not world.services["site1", "kv"].entries:
        world.run_until(world.now_ms + 1)
    world.restart_after_crash("site1")
    assert world.unknown("site1", resource)
    world.resolve_unknown()
    world.pass_s(5)
    assert world.entries("kv") == [["/$.key/a"], ["/$.key/a"]]
    assert all(resource in agent.backend.copies.index.copies for agent in world.agents.values())
    assert world.overall(resource) == [Overall.CONVERGED] * 2


def test_what_a_create_in_doubt_may_have_made_is_not_forgotten_by_a_deletion(world: HandWorld) -> None:
    world.fates[1].append(Fate.DONE)
    resource = note(world)
    assert world.unknown("site2", resource)
    world.ask("site1", "notes", "DELETE", f"/notes/{resource}", {})
    assert world.entries("notes") == [[], ["/notes/41"]]
    assert Overall.CONVERGED not in world.overall(resource)
    world.resolve_unknown()
    world.pass_s(60)
    assert world.entries("notes") == [[], []]
    assert world.overall(resource) == [Overall.CONVERGED] * 2


def test_a_create_whose_id_nobody_knows_cannot_be_taken_for_done(world: HandWorld) -> None:
    resource = note(world)
    payload = next(iter(world.decided[resource].values())).payload
    backend = world.agents["site2"].backend
    world.finish(backend.resolved("http:notes", resource, payload, happened=True))  # its copy is known
    world.finish(backend.copies.unbind(resource))
    world.finish(backend.resolved("http:notes", resource, payload, happened=False))
    with pytest.raises(ClientError, match="nobody knows under which id"):
        world.finish(backend.resolved("http:notes", resource, payload, happened=True))


@pytest.mark.parametrize("first", ["/b", "/b/k"])
def test_a_parent_and_its_child_at_the_same_time_have_one_order(world: HandWorld, first: str) -> None:
    world.cut |= {BOTH, BOTH[::-1]}
    contents = {"/b": {"made": "x"}, "/b/k": {"value": "y"}}
    paths = sorted(contents, key=lambda path: path != first)
    parent, child = sorted((world.begin("site1", "store", "PUT", one, contents[one]) for one in paths), key=_path)
    world.pass_s(5)
    assert parent.status == 201
    assert child.status == (201 if first == "/b" else 404)
    if first == "/b":
        (op,) = world.decided[child.resource].values()
        assert [one.resource for one in request_of(op.payload).after] == [parent.resource]
    world.cut.clear()
    world.pass_s(10)
    assert world.entries("store") == [["/b", "/b/k"] if first == "/b" else ["/b"]] * 2


def _path(sent: Sent) -> str:
    return sent.path


@pytest.mark.parametrize("delay_ms", range(0, 40, 4))
def test_what_is_put_into_a_collection_while_another_site_deletes_that(world: HandWorld, delay_ms: int) -> None:
    """The service may have both requests at once. If the new file is lost at one site, nobody says CONVERGED."""
    file = meta_id_of("path", "files", "/d/f")
    world.ask("site2", "files", "MKCOL", "/d", {})
    world.begin("site2", "files", "DELETE", "/d", {})
    world.run_until(world.now_ms + delay_ms)
    sent = world.begin("site1", "files", "PUT", "/d/f", {"value": "x"})
    world.pass_s(5)
    world.ask("site2", "files", "MKCOL", "/d", {})  # from now on the file can be put there
    world.pass_s(10)
    one, other = world.entries("files")
    assert one == other or Overall.CONVERGED not in world.overall(file)
    assert sent.status is not None


@pytest.mark.parametrize("delay_ms", range(18, 38))
def test_what_is_put_into_a_collection_that_another_site_made_comes_after_it(delay_ms: int) -> None:
    """Also while this site still runs the creation. A third site may hear of the file first."""
    world = HandWorld((*BOTH, "site3"))
    folder, file = (meta_id_of("path", "files", path) for path in ("/d", "/d/f"))
    world.crash("site3", 60_000)
    world.begin("site2", "files", "MKCOL", "/d", {})
    world.run_until(world.now_ms + delay_ms)
    sent = world.ask("site1", "files", "PUT", "/d/f", {"value": "x"})
    replica = world.nodes["site1"].replica(file)
    for op in replica.history.ops.values() if replica and sent.status == 201 else ():
        request = request_of(op.payload)
        assert folder in {request.within, *(one.resource for one in request.after)}
    assert sent.status in (201, 409)
    assert world.loop.errors == []
    world.close()


def test_a_request_that_was_taken_before_its_bucket_was_known_waits_until_that_is_everywhere() -> None:
    """Its operation does not name the bucket, and a third site would not wait for it."""
    world = HandWorld((*BOTH, "site3"))
    world.crash("site3", 20_000)
    world.fates[0].append(Fate.LOST)
    sent = world.begin("site1", "store", "PUT", "/b/k", {"value": "x"})
    world.run_until(world.now_ms + 40)
    world.services["site1", "store"].down_until_ms = world.now_ms + 2_000
    world.ask("site2", "store", "PUT", "/b", {"made": "y"})
    world.pass_s(8)
    assert sent.status == 202
    assert sorted(world.services["site1", "store"].entries) == ["/b"], "it waits"
    world.pass_s(60)
    assert [sorted(world.services[site, "store"].entries) for site in world.sites] == [["/b", "/b/k"]] * 3
    assert world.overall(meta_id_of("path", "store", "/b/k")) == [Overall.CONVERGED] * 3
    assert world.loop.errors == []
    world.close()


@pytest.mark.parametrize("keeps_tags", [False, True], ids=["a new object has no tags", "a new object keeps them"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_part_that_was_changed_between_two_puts_of_what_it_is_of(
    world: HandWorld, monkeypatch: pytest.MonkeyPatch, method: str, *, keeps_tags: bool
) -> None:
    """The last PUT replaces the first one, which a site that is behind need not run. Then nothing is there to change a
    part of, before the last PUT has run."""
    for site in BOTH if keeps_tags else ():
        monkeypatch.setattr(world.services[site, "store"], "forget", lambda _path: None)
    world.ask("site1", "store", "PUT", "/b", {"made": "x"})
    world.cut |= {BOTH, BOTH[::-1]}
    world.ask("site1", "store", "PUT", "/b/k", {"value": "old"})
    world.ask("site1", "store", method, "/b/k?tagging", {"value": "t"} if method == "PUT" else {})
    world.ask("site1", "store", "PUT", "/b/k", {"value": "new"})
    world.cut.clear()
    world.pass_s(10)
    assert world.overall(meta_id_of("path", "store", "/b/k")) == [Overall.CONVERGED] * 2
    one, other = (world.services[site, "store"].entries for site in BOTH)
    assert one == other
    assert one["/b/k"] == {"value": "new"}
    assert ("/b/k?tagging" in one) == (keeps_tags and method == "PUT")


def test_the_first_change_of_what_begins_with_one_runs_at_a_site_that_is_behind(world: HandWorld) -> None:
    """What later changes are replayed from replaces what is before it: it must not come after the first change."""
    world.cut |= {BOTH, BOTH[::-1]}
    for tag in ("red", "blue"):
        world.ask("site1", "images", "PUT", f"/r/tags/{tag}", {"value": tag})
    world.cut.clear()
    world.pass_s(10)
    assert world.entries("images") == [["/r/tags/blue", "/r/tags/red"]] * 2
    assert world.overall(meta_id_of("path", "images", "/r")) == [Overall.CONVERGED] * 2
