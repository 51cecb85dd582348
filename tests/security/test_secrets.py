"""Planted secrets, and nowhere a trace: not in a store, a log, a process list, an answer or an error message.

Two sites with certificates do all that involves secrets, right and wrong; then everything that they keep, say
and run is searched, for the secrets as they are and as they are usually written.
"""

import base64
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from cheops.api.models.operations import SubmitRequest, Wait
from cheops.api.models.site import InviteRequest
from cheops.client import AgentError
from cheops.security.principal import Role
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.gateway.replicas.sites import Sites
from tests.security.clients import ask, local, token
from tests.security.sites import all_up
from tests.support.command import run_process

NAMES = ("site1", "site2")
PLANTED = {  # each is unlike anything else, so that to find it means something
    name: f"planted-{name}-{secrets.token_hex(12)}"
    for name in (
        "authorization",
        "service-auth",
        "webhook-secret",
        "mail-password",
        "environment",
        "wrong-token",
    )
}
TYPE = {
    "allow": ["sleep *", "cat /proc/self/environ"],
    "read": "true",
    "matrix": [{"before": "set", "after": "set", "result": "take-one"}],
}


@dataclass
class Evidence:
    """What was secret, and what the sites said and ran. What they keep is on disk."""

    rig: Rig
    secrets: dict[str, set[bytes]] = field(default_factory=dict)
    told: list[tuple[str, bytes]] = field(default_factory=list)
    processes: dict[str, bytes] = field(default_factory=dict)
    its_place: set[Path] = field(default_factory=set)  # files in which it belongs

    def is_secret(self, name: str, *texts: str | bytes) -> None:
        for text in texts:
            raw = text if isinstance(text, bytes) else text.encode()
            forms = {
                raw,
                raw.hex().encode(),
                base64.b64encode(raw),
                base64.urlsafe_b64encode(raw).rstrip(b"="),
                quote(raw).encode(),
            }
            self.secrets.setdefault(name, set()).update(form for form in forms if len(form) >= 16)

    def key_is_secret(self, name: str, path: Path) -> None:
        """As it stands in its file, line by line, and as the number that it is."""
        pem = path.read_bytes()
        key = load_pem_private_key(pem, None)
        der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        lines = [line for line in pem.splitlines() if len(line) >= 40 and not line.startswith(b"-")]
        self.is_secret(name, *lines[1:], der)
        self.its_place.add(path)


def configured(base: Path) -> Sites:
    sites = Sites(base, NAMES, secure=True, auth={"file": "auth.headers"})
    assert sites.rig.pki
    for name in NAMES:
        folder = sites.rig.folder(name)
        (folder / "auth.headers").write_text(f"X-Auth-Token: {PLANTED['service-auth']}\n")
        (folder / "hook").write_text(PLANTED["webhook-secret"])
        (folder / "password").write_text(PLANTED["mail-password"])
        for file in ("auth.headers", "hook", "password"):
            (folder / file).chmod(0o600)
        config = yaml.safe_load((folder / "site.yaml").read_text())
        config["types"] = {"probe": TYPE}
        config["notify"] = {
            "hook": {"webhook": {"url": "http://127.0.0.1:1/x", "secret_file": "hook"}},
            "mail": {
                "mail": {
                    "smtp": "127.0.0.1:1",
                    "from": "a@example.org",
                    "to": ["b@example.org"],
                    "user": "a",
                    "password_file": "password",
                    "starttls": True,
                }
            },
        }
        if name == "site1":
            config["security"]["ca_key"] = str(sites.rig.pki.write(folder / "ca"))
        (folder / "site.yaml").write_text(yaml.safe_dump(config))
    return sites


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    os.environ["PLANTED_FOR_AGENTS"] = PLANTED["environment"]
    sites = configured(tmp_path_factory.mktemp("secrets") / "rig")
    found = Evidence(sites.rig)
    try:
        sites.start()
        all_up(sites.rig)
        for name, text in PLANTED.items():
            found.is_secret(name, text)
        keys(found)
        people(found)
        services(found, sites)
        commands(found)
        everything_that_is_told(found)
        yield found
    finally:
        sites.rig.close()
        del os.environ["PLANTED_FOR_AGENTS"]


def keys(found: Evidence) -> None:
    for name in NAMES:
        folder = found.rig.folder(name)
        found.key_is_secret("key of a site", folder / "tls" / "site.key")
        found.key_is_secret("key for signatures", folder / "tls" / "signing.key")
        found.its_place |= {folder / "auth.headers", folder / "hook", folder / "password"}
    found.key_is_secret("key of the authority", found.rig.folder("site1") / "ca" / "ca.key")


def people(found: Evidence) -> None:
    """Tokens, right and wrong; sessions; invitations."""
    rig = found.rig
    good = token(rig, "good", Role.ADMIN)
    found.is_secret("token", good)
    for secret in (
        good,
        good[:-1],
        f"{good}x",
        PLANTED["wrong-token"],
        f"cheops_{PLANTED['wrong-token']:_<43.43}",
    ):
        for path in ("/api/v1/tokens", "/api/v1/resources/n", "/nowhere"):
            found.told.append((f"GET {path}", ask(rig, "GET", path, secret=secret).body))
        found.is_secret("token", secret) if secret.startswith(good[:20]) else None
    said = ask(rig, "GET", "/api/v1/tokens", headers={"Authorization": f"Basic {good}"})
    signed_in = ask(rig, "POST", "/api/v1/session", {"token": good})
    cookie = signed_in.headers["set-cookie"].partition(";")[0].partition("=")[2]
    found.is_secret("session", cookie)
    found.told += [("Basic", said.body), ("sign in", signed_in.body)]
    found.told.append(("session", ask(rig, "GET", "/api/v1/session", headers={"Cookie": f"x={cookie}"}).body))
    env = {
        **os.environ,
        "CHEOPS_TOKEN": good,
        "CHEOPS_URL": rig.url("site1"),
        "CHEOPS_CA": str(rig.folder("site1") / "tls" / "ca.pem"),
    }
    for argv in (
        ("get", "sites"),
        ("token", "list"),
        ("show", "--id", "no such"),
        ("get", "resources", "--url", "https://127.0.0.1:1"),
    ):
        ran = run_process(*argv, env=env)
        found.told.append((" ".join(argv), (ran.out + ran.err).encode()))
    invitation = local(rig).invite(InviteRequest(site="site9"))
    found.is_secret("invitation", invitation.code)
    body = {
        "secret": base64.b64encode(PLANTED["wrong-token"].encode()).decode(),
        "request": "",
        "signature": "",
    }
    found.told.append(("join", ask(rig, "POST", "/join", body).body))


def services(found: Evidence, sites: Sites) -> None:
    """A client's credentials through the gateway: local, shared, replicated, and to a service that is gone."""
    headers = {
        "Authorization": f"Bearer {PLANTED['authorization']}",
        "Cookie": f"s={PLANTED['authorization']}",
    }
    for name, scope in (("local", None), ("shared", "site2"), ("replicated", "site1 & site2")):
        answer = sites.call("site1", "POST", "/images", {"name": name}, scope, Cheops_Wait="all", **headers)
        assert answer.status == 201, answer.body
    assert sites.call("site1", "GET", "/images", None, "nowhere", **headers).status >= 400
    sites.stop_service("site1")
    for scope in (None, "site1 & site2"):
        answer = sites.call("site1", "POST", "/images", {"name": "y"}, scope, Prefer="wait=1", **headers)
        found.told.append(("a service that is gone", answer.body))


def commands(found: Evidence) -> None:
    """What commands are given, and what is seen of them and of the agents meanwhile."""
    admin = local(found.rig)
    asked = SubmitRequest(type="set", command="cat /proc/self/environ", sites="site1", resource_type="probe")
    done = admin.submit("environ", asked)
    found.told.append(("environ of a command", done.answers[0].output.encode()))
    assert b"PATH=" in done.answers[0].output.encode()
    with pytest.raises(AgentError) as refused:
        admin.submit("x", SubmitRequest(type="set", command="rm /", sites="site1", resource_type="probe"))
    found.told.append(("a refusal", str(refused.value).encode()))
    mark = f"30.{secrets.randbelow(10**9):09}"
    admin.submit(
        "sleeping",
        SubmitRequest(type="set", command=f"sleep {mark}", sites="site1", resource_type="probe"),
        wait=Wait.NONE,
    )
    until(lambda: any(mark.encode() in line for line in _running("cmdline").values()), "for the command to run")
    found.processes = {f"cmdline of {pid}": line for pid, line in _running("cmdline").items()}
    sleeping = [pid for pid, line in _running("cmdline").items() if mark.encode() in line]
    found.processes |= {f"environ of {pid}": _read(pid, "environ") for pid in sleeping}


def everything_that_is_told(found: Evidence) -> None:
    paths = ("/metrics", "/api/v1/check", "/api/v1/audit", "/api/v1/tokens", "/api/v1/sites", "/api/v1/resources", "/api/v1/replicants", "/api/v1/changes?since=0-0",
             "/db/cheops/_changes?include_docs=true", "/api/v1/resources/environ/log", "/join/authority", "/api/v1/openapi.json")  # fmt: skip
    for name in NAMES:
        for path in paths:
            try:
                told = found.rig.request(name, "GET", path)
            except RefusedByAgentError as refused:
                told = refused.body
            found.told.append((f"{path} at {name}", told))
    log = found.rig.folder("site1") / "data" / "audit.log"
    until(lambda: b"token:good" in log.read_bytes(), "for the audit log, which has a thread of its own")


def _running(what: str) -> dict[int, bytes]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: line for pid in pids if (line := _read(pid, what))}


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


KINDS = (
    *PLANTED,
    "token",
    "session",
    "invitation",
    "key of a site",
    "key for signatures",
    "key of the authority",
)


def test_no_secret_is_anywhere(evidence: Evidence) -> None:
    """One test for all of them: what they are searched in takes long to make."""
    check_that_the_search_finds_what_is_there(evidence)
    assert {kind: found for kind in KINDS if (found := places(evidence, evidence.secrets[kind]))} == {}


def places(evidence: Evidence, forms: set[bytes]) -> list[str]:
    """Where a secret is that should not be there."""
    kept = (path for path in evidence.rig.base.rglob("*") if path.is_file() and path not in evidence.its_place)
    found = [f"in {path}" for path in kept if _holds(path.read_bytes(), forms)]
    found += [f"told by {where}" for where, text in evidence.told if _holds(text, forms)]
    return found + [where for where, text in evidence.processes.items() if _holds(text, forms)]


def _holds(content: bytes, forms: set[bytes]) -> bool:
    return any(form in content for form in forms)


def check_that_the_search_finds_what_is_there(evidence: Evidence) -> None:
    """Or nothing would mean nothing: the same places hold what is no secret."""
    kept = b"".join(path.read_bytes() for path in evidence.rig.base.rglob("*.db*"))
    assert b"/proc/self/environ" in kept
    logs = b"".join(path.read_bytes() for path in evidence.rig.base.rglob("log"))
    assert b"listens on" in logs
    assert b"token:good" in b"".join(path.read_bytes() for path in evidence.rig.base.rglob("audit.log*"))
    assert len(evidence.processes) > 4
    for path in evidence.its_place:
        assert any(_holds(path.read_bytes(), forms) for forms in evidence.secrets.values()), path
    assert json.loads(dict(evidence.told)["/api/v1/check at site1"])["site"] == "site1"
