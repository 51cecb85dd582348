"""A site that was stolen, or never was honest: it has a certificate and keys of the mesh, and no manners.

It sends to the agents of a rig whatever a test likes, over TLS as that site, and signs what it likes.
"""

import json
import time
from pathlib import Path
from typing import Any

from msgspec import structs

from cheops.engine.documents import Message
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Reply, Stamp, Status, Verdict
from cheops.peers import links
from cheops.peers.couchdb.documents import parse_document
from cheops.security.keyring import KeyFolder, load_key_folder
from cheops.security.signatures import Signer
from cheops.security.tls import client_context
from cheops.store.codec import content_of
from tests.agent.rig import Rig
from tests.security.sites import answer


def documents(rig: Rig, site: str, resource: str) -> list[Operation | Reply]:
    """What a site keeps of a resource."""
    rows = json.loads(rig.request(site, "GET", "/db/cheops/_changes?include_docs=true"))["results"]
    found = [parse_document(row["doc"])[0] for row in rows]
    return [d for d in found if isinstance(d, Operation | Reply) and d.resource == resource]


def operations(rig: Rig, site: str, resource: str) -> dict[str, Operation]:
    return {str(d.id): d for d in documents(rig, site, resource) if isinstance(d, Operation)}


def changed(document: Any, **changes: Any) -> Any:
    """The same with other fields, and the signature that it had."""
    return structs.replace(document, **changes)


def signed(document: Any, folder: KeyFolder) -> Any:
    (signature,) = Signer(folder.signing_key).sign([content_of(changed(document, signature=""))])
    return changed(document, signature=signature)


class Rogue:
    """Speaks as the site whose folder it has."""

    def __init__(self, rig: Rig, folder: KeyFolder) -> None:
        self.rig = rig
        self.folder = folder
        self.name = folder.identity.site

    @classmethod
    def new(cls, rig: Rig, base: Path, name: str, **more: Any) -> "Rogue":
        """A member of the mesh of which nobody has heard."""
        assert rig.pki
        return cls(rig, rig.pki.site(base / name, name, "127.0.0.1", **more))

    @classmethod
    def of(cls, rig: Rig, name: str) -> "Rogue":
        """Who has stolen the keys of a site."""
        return cls(rig, load_key_folder(rig.folder(name) / "tls"))

    def send(self, to: str, *found: Operation | Reply, **more: Any) -> tuple[int, Any]:
        resource = found[0].resource
        message = Message(
            resource,
            "x",
            tuple(d for d in found if isinstance(d, Operation)),
            tuple(d for d in found if isinstance(d, Reply)),
            **more,
        )
        headers = {"Content-Type": "application/json"}
        body = links.pack(self.name, [message])
        context = client_context(self.folder)
        return answer(self.rig, to, context, "POST", f"/{links.MESSAGES_PATH}", body=body, headers=headers)

    def operation(self, like: Operation, command: str, **changes: Any) -> Operation:
        """One more on the resource of an operation that is there, made in knowledge of that one, and signed."""
        origin = changes.pop("origin", Origin(self.name, "rogue"))
        stamp = changes.pop("stamp", Stamp(int(time.time() * 1000), 0, origin))
        made = Operation(
            **{
                "resource": like.resource,
                "rtype": like.rtype,
                "type": like.type,
                "kind": Kind.NORMAL,
                "payload": Command(command),
                "origin": origin,
                "seq": 1,
                "deps": {**like.deps, like.origin: like.seq},
                "stamp": stamp,
                "matrix": like.matrix,
                "verdict": Verdict.OK,
                **changes,
            }
        )
        return signed(made, self.folder)  # type: ignore[no-any-return]

    def begin(self, resource: str, rtype: str, command: str, *sites: str, **changes: Any) -> Operation:
        """The first operation of a resource."""
        origin = changes.pop("origin", Origin(self.name, "rogue"))
        stamp = changes.pop("stamp", Stamp(int(time.time() * 1000), 0, origin))
        none = MatrixRef(Matrix().hash, Stamp(0, 0, Origin("-", "-")))
        made = Operation(
            resource,
            rtype,
            "inc",
            Kind.NORMAL,
            Command(command),
            origin,
            1,
            {},
            stamp,
            none,
            sites,
            verdict=Verdict.OK,
        )
        return signed(changed(made, **changes), self.folder)  # type: ignore[no-any-return]

    def reply(self, op: Operation, status: Status, n: int = 1, **changes: Any) -> Reply:
        origin = changes.pop("origin", Origin(self.name, "rogue"))
        return signed(Reply(op.resource, origin, n, op.id, op.key, status, **changes), self.folder)  # type: ignore[no-any-return]
