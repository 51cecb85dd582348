"""Sites with certificates, as real processes, and what a stranger does to them."""

import json
import re
import ssl
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cheops.peers.heartbeat import SiteRecord
from cheops.peers.proofs import record_content
from cheops.security.certificates import dns_name
from cheops.security.keyring import KeyFolder
from cheops.security.tls import client_context
from tests.agent.rig import RefusedByAgentError, Rig, until

TYPES: dict[str, Any] = {
    "note": {
        "matrix": [{"before": "set", "after": "set", "result": "take-one"}],
        "allow": ["cp ..."],
        "shell": False,
        "read": "cat __ID__",
        "cwd": "@FOLDER@",
    }
}

NOTE: dict[str, Any] = {"resource-type": "note"}


def refused(rig: Rig, site: str, reason: str) -> float:
    """How often, as its metrics tell."""
    text = rig.request(site, "GET", "/metrics").decode()
    found = re.findall(rf'^cheops_refused_total{{reason="{re.escape(reason)}"[^}}]*}} (\d+)', text, re.MULTILINE)
    return sum(map(float, found))


def answer(rig: Rig, site: str, context: ssl.SSLContext, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """What a connection with this context is answered; as a peer would be, by name and not by address."""
    with rig.tls(site, context, dns_name(site)) as connection:
        connection.request(method, path, more.get("body"), more.get("headers", {}))
        found = connection.getresponse()
        content = found.read()
    try:
        return found.status, json.loads(content)
    except ValueError:
        return found.status, content


def believing(rig: Rig, shown: KeyFolder | None) -> ssl.SSLContext:
    """Believes the mesh's authority, and shows whatever certificate one likes."""
    assert rig.pki
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=rig.pki.pem)
    if shown:
        context.load_cert_chain(shown.certificate_file, shown.key_file)
    return context


def as_site(rig: Rig, site: str) -> ssl.SSLContext:
    """As the agent of a site connects."""
    from cheops.security.keyring import load_key_folder  # noqa: PLC0415

    return client_context(load_key_folder(rig.folder(site) / "tls"))


def heartbeat(sender: str, **more: Any) -> bytes:
    now_ms = int(time.time() * 1000)
    told = {"sender": sender, "incarnation": "x", "revision": 1, "beat": now_ms, "sent_ms": now_ms, **more}
    return json.dumps(told).encode()


def site_record(folder: KeyFolder, name: str = "", **content: Any) -> SiteRecord:
    """A record signed with the keys in a folder: for their own site, or in the name of another one."""
    content = {"url": "https://127.0.0.1:9", "revision": int(time.time() * 1000), **content}
    unsigned = SiteRecord(name or folder.identity.site, "x", certificate=folder.identity.der, **content)
    return replace(unsigned, signature=folder.signing_key.sign(record_content(unsigned)))


def states(rig: Rig, site: str) -> dict[str, str]:
    found = json.loads(rig.request(site, "GET", "/api/v1/sites"))["sites"]
    return {one["name"]: one["state"] for one in found}


def all_up(rig: Rig, *names: str) -> None:
    for name in names or rig.names:
        until(lambda n=name: all(states(rig, n)[o] == "up" for o in rig.names), f"for {name} to see all")  # type: ignore[misc]


def is_well(rig: Rig, site: str) -> bool:
    try:
        rig.request(site, "GET", "/healthz")
    except (OSError, RefusedByAgentError):
        return False
    return "Traceback" not in rig.log(site)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
