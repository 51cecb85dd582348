"""Asking an agent as somebody: with a token, by its socket, with a cookie; and settings of its own."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cheops.api.models.site import MadeToken, NewToken
from cheops.client import Agent
from cheops.security.principal import Role
from tests.agent.rig import Rig
from tests.agent.types import FILE, TALLY

TYPES: dict[str, Any] = {"file": FILE, "tally": TALLY, "shown": {**FILE, "show": ["cat *"]}}


class Said(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def local(rig: Rig, site: str = "site1") -> Agent:
    """As the administrator, by the agent's own socket."""
    return Agent(f"unix://{rig.folder(site) / 'data' / 'agent.sock'}")


def made(rig: Rig, name: str, role: Role, site: str = "site1", **more: Any) -> MadeToken:
    return local(rig, site).create_token(NewToken(name=name, role=role, **more))


def token(rig: Rig, name: str, role: Role, site: str = "site1", **more: Any) -> str:
    return made(rig, name, role, site, **more).secret


def agent(rig: Rig, secret: str, site: str = "site1") -> Agent:
    """With a token, over the network."""
    ca = str(rig.folder(site) / "tls" / "ca.pem") if rig.pki else ""
    return Agent(rig.url(site), token=secret, ca=ca)


@contextmanager
def connection(rig: Rig, site: str = "site1") -> Iterator[http.client.HTTPConnection]:
    """Over the network, by somebody who shows nothing yet."""
    host, port = rig.url(site).partition("://")[2].split(":")
    if rig.pki:
        context = ssl.create_default_context(cadata=rig.pki.pem)
        made_: http.client.HTTPConnection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
    else:
        made_ = http.client.HTTPConnection(host, int(port), timeout=30)
    with closing(made_):
        yield made_


def ask(  # noqa: PLR0913 - what a request has
    rig: Rig,
    method: str,
    path: str,
    body: Any = None,
    *,
    secret: str = "",
    site: str = "site1",
    headers: Mapping[str, str] | None = None,
) -> Said:
    with connection(rig, site) as asking:
        shown = {"Authorization": f"Bearer {secret}"} if secret else {}
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        asking.request(method, path, sent, {**shown, **(headers or {})})
        answer = asking.getresponse()
        return Said(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


def configure(rig: Rig, site: str, **settings: Any) -> None:
    """More settings, before the agent is started."""
    path = rig.folder(site) / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def rig_of(base: Path, *names: str, secure: bool = True, **settings: Any) -> Rig:
    rig = Rig(base / "rig", TYPES, names or ("site1",), secure=secure)
    for name in rig.names:
        configure(rig, name, **settings)
    return rig


def refusals(rig: Rig, reason: str, site: str = "site1") -> float:
    """How often something was refused for this reason, as the metrics tell."""
    lines = rig.request(site, "GET", "/metrics").decode().splitlines()
    found = [line for line in lines if line.startswith("cheops_refused_total{") and f'reason="{reason}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def is_unharmed(rig: Rig, site: str = "site1") -> bool:
    """Whether the agent takes and runs operations, and made no mistake of its own."""
    fields = {"command": "echo well > __ID__", "sites": site, "type": "set", "resource-type": "file"}
    done = json.loads(rig.post(site, "/exec/unharmed", fields))
    return done["Status"] == "OK" and "mistake" not in rig.log(site) and "Traceback" not in rig.log(site)
