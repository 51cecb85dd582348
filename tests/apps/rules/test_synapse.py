"""Synapse's rooms, with `rules: synapse`: each homeserver gives a room another id, and /sync has ids as names."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.agent.rig import until
from tests.apps.rules.conftest import APPLICATIONS, MakeSites
from tests.gateway.replicas.app_sites import AppSites, must_be_true
from tests.gateway.stage import Answer
from tests.wan import Wan

SITES = ("site1", "site2")
BOTH = "site1 & site2"
PYTHON = APPLICATIONS / "bin" / "python"
API = "/_matrix/client/v3"
STATE = ("m.room.name", "m.room.topic", "m.room.member", "m.room.join_rules", "m.room.power_levels")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (APPLICATIONS / "bin" / "synapse_homeserver").is_file(), reason="needs Synapse: 'make apps' installs it"
    ),
]


class Homeservers:
    """A homeserver for each site, with the same users."""

    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites = sites
        self.tokens: dict[tuple[str, str], str] = {}
        self._base = base
        self._sent = 0
        for site in SITES:  # what bob says at one site, bob says at the other one, too
            (base / f"tokens-{site}").mkdir()
            sites.configure(
                site,
                replicate_as="mapped",
                client={
                    "ask": f"http://127.0.0.1:{sites.own(site, sites.service)}{API}/account/whoami",
                    "value": "$.user_id",
                },
                auth={"folder": str(base / f"tokens-{site}")},
            )

    def start(self) -> None:
        self.sites.start(self._argv)
        for site in SITES:
            until(lambda s=site: self.sites.direct(s, "GET", "/health").status == 200, f"for {site}")  # type: ignore[misc]
            for user in ("alice", "bob"):
                body = {"username": user, "password": f"of-{user}", "auth": {"type": "m.login.dummy"}}
                token = self.sites.direct(site, "POST", f"{API}/register", body).json["access_token"]
                self.tokens[site, user] = token
                file = self._base / f"tokens-{site}" / f"@{user}%3Aedge.test"
                file.write_text(f"Authorization: Bearer {token}\n")

    def _argv(self, site: str, port: int) -> list[str]:
        home = self._base / f"synapse-{site}"
        home.mkdir()
        config = {
            "server_name": "edge.test",
            "pid_file": str(home / "pid"),
            "listeners": [
                {
                    "port": port,
                    "bind_addresses": ["127.0.0.1"],
                    "type": "http",
                    "tls": False,
                    "resources": [{"names": ["client"]}],
                }
            ],
            "database": {"name": "sqlite3", "args": {"database": str(home / "db")}},
            "media_store_path": str(home / "media"),
            "signing_key_path": str(home / "key"),
            "log_config": str(home / "log.yaml"),
            "macaroon_secret_key": "x",
            "form_secret": "x",
            "report_stats": False,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "enable_registration": True,
            "enable_registration_without_verification": True,
            "rc_message": {"per_second": 1000, "burst_count": 1000},
            "rc_room_creation": {"per_second": 1000, "burst_count": 1000},
            "rc_registration": {"per_second": 1000, "burst_count": 1000},
        }
        (home / "homeserver.yaml").write_text(yaml.safe_dump(config))
        (home / "log.yaml").write_text("{version: 1}")
        (home / "key").write_text(f"ed25519 a_1 {SIGNING_KEYS[site]}\n")
        return [str(PYTHON), "-m", "synapse.app.homeserver", "-c", str(home / "homeserver.yaml")]

    def call(  # noqa: PLR0913, PLR0917 - a request
        self, site: str, method: str, path: str, content: Any = None, scope: str = "", user: str = "alice"
    ) -> Answer:
        rights = f"Bearer {self.tokens[site, user]}"
        return self.sites.call(site, method, f"{API}{path}", content, scope, Authorization=rights)

    def send(self, site: str, room: str, text: str, user: str = "alice") -> Answer:
        self._sent += 1
        content = {"msgtype": "m.text", "body": text}
        return self.call(site, "PUT", f"/rooms/{quote(room)}/send/m.room.message/{self._sent}", content, user=user)

    def rooms(self, site: str) -> list[dict[str, Any]]:
        """The rooms that the homeserver of a site itself has: their state, and their messages in order."""
        headers = {"Authorization": f"Bearer {self.tokens[site, 'alice']}"}
        address = ("127.0.0.1", self.sites.own(site, self.sites.service))

        def read(path: str) -> Any:
            return self.sites._asked(site, address, "GET", f"{API}{path}", None, headers).json

        found = []
        for room in read("/joined_rooms")["joined_rooms"]:
            place = f"/rooms/{quote(room)}"
            state = {
                f"{one['type']} {one['state_key']}": one["content"]
                for one in read(f"{place}/state")
                if one["type"] in STATE
            }
            events = read(f"{place}/messages?dir=f&limit=100")["chunk"]
            messages = [
                f"{one['sender'][1:].split(':')[0]}: {one['content']['body']}"
                for one in events
                if one["type"] == "m.room.message"
            ]
            found.append({"state": state, "messages": messages})
        return sorted(found, key=str)

    def agree(self) -> list[dict[str, Any]]:
        until(lambda: self.rooms("site1") == self.rooms("site2"), "for the same rooms at both sites")
        assert self.sites.settled() == {site: {"CONVERGED"} for site in SITES}
        assert self.rooms("site1") == self.rooms("site2")
        return self.rooms("site1")


@pytest.fixture
def servers(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Homeservers:
    made = Homeservers(make_sites("matrix", wan, rules="synapse", sites=SITES), tmp_path)
    made.start()
    return made


SIGNING_KEYS = {"site1": "A" * 43, "site2": "B" * 42 + "A"}


def test_rooms_are_shared_and_replicated(servers: Homeservers, wan: Wan) -> None:
    own = servers.call("site1", "POST", "/createRoom", {"name": "own"}).json["room_id"]
    assert own.startswith("!")  # without a scope as without Cheops
    assert servers.send("site1", own, "to myself").status == 200
    shared = servers.sites.call(
        "site2", "GET", f"{API}/joined_rooms", scope="site1", Authorization=f"Bearer {servers.tokens['site1', 'alice']}"
    )
    assert shared.json["joined_rooms"] == [own]  # a room of another site, used from here
    assert servers.call("site1", "POST", f"/rooms/{quote(own)}/leave", {}).status == 200

    room = servers.call("site1", "POST", "/createRoom", {"name": "plans", "preset": "public_chat"}, BOTH).json[
        "room_id"
    ]
    assert room.startswith("c4e095a1")
    servers.agree()
    assert servers.send("site1", room, "one").status == 200
    servers.agree()
    assert servers.call("site2", "POST", f"/join/{room}", {}, user="bob").status == 200
    assert servers.send("site2", room, "two", user="bob").status == 200
    (found,) = servers.agree()
    assert found["messages"] == ["alice: one", "bob: two"]
    for site in SITES:
        synced = servers.call(site, "GET", "/sync").json
        assert list(synced["rooms"]["join"]) == [room]  # the id is the name of a member
        assert servers.call(site, "GET", "/joined_rooms").json == {"joined_rooms": [room]}

    wan.partition(["site1"], ["site2"])
    topic = f"/rooms/{room}/state/m.room.topic"
    assert servers.call("site1", "PUT", topic, {"topic": "first"}).status == 200
    assert servers.call("site2", "PUT", topic, {"topic": "later"}).status == 200
    assert servers.call("site2", "PUT", f"/rooms/{room}/state/m.room.name", {"name": "new plans"}).status == 200
    wan.heal()
    (found,) = servers.agree()
    assert found["state"]["m.room.topic "]["topic"] == "later"
    assert found["state"]["m.room.name "]["name"] == "new plans"
    wan.partition(["site1"], ["site2"])
    assert servers.send("site1", room, "three").status == 200
    assert servers.send("site1", room, "four").status == 200
    wan.heal()
    (found,) = servers.agree()
    assert found["messages"] == ["alice: one", "bob: two", "alice: three", "alice: four"]
    # Both sides of a cut send: nobody can put the messages into one order any more, and nobody must say so.
    wan.partition(["site1"], ["site2"])
    assert servers.send("site1", room, "here").status == 200
    assert servers.send("site2", room, "there").status == 200
    wan.heal()
    said = servers.sites.settled()
    must_be_true(said, [servers.rooms(site) for site in SITES])
    assert said == {site: {"DIVERGED"} for site in SITES}


def test_what_refers_to_an_event_of_one_site_is_refused(servers: Homeservers) -> None:
    room = servers.call("site1", "POST", "/createRoom", {"name": "plans"}, BOTH).json["room_id"]
    event = servers.send("site1", room, "one").json["event_id"]
    servers.agree()
    content = {"msgtype": "m.text", "body": "reply", "m.relates_to": {"m.in_reply_to": {"event_id": event}}}
    reply = servers.call("site1", "PUT", f"/rooms/{room}/send/m.room.message/8", content)
    assert reply.status == 422
    assert "the ids of events are those of one site" in reply.json["detail"]
    assert servers.call("site1", "PUT", f"/rooms/{room}/redact/{quote(event)}/9", {}).status == 422
    assert servers.call("site1", "POST", f"/rooms/{room}/upgrade", {"new_version": "11"}).status == 422
    assert servers.call("site1", "POST", f"/rooms/{room}/receipt/m.read/{quote(event)}", {}).status == 200
    (found,) = servers.agree()
    assert found["messages"] == ["alice: one"]
