"""Documents of other sites, on request: what the disk has damaged here, and outputs, which stay at their sites."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from cheops.engine.documents import Document, key_of
from cheops.engine.intake import document_objection
from cheops.errors import CheopsError
from cheops.log.operation import Operation, Reply
from cheops.peers.client import connection_problem, decode_json
from cheops.peers.couchdb.documents import RefusedError, parse_document
from cheops.peers.requests import RequestKind
from cheops.store.codec import id_of
from cheops.text import in_words, printable

if TYPE_CHECKING:
    from cheops.node.node import Node

MOST_DOCUMENTS = 100  # in one request
MOST_BYTES = 16 * 1024 * 1024  # in one response: as many documents as fit, and two of any size do
_TIMEOUT_S = 30.0
_OUTPUT_TIMEOUT_S = 5.0  # somebody waits
_log = logging.getLogger(__name__)


class DocumentRequest(msgspec.Struct, frozen=True):
    resource: str
    ids: list[str]


class _Found(msgspec.Struct, frozen=True):
    # Each is read by itself, when it is known that there are few: a site may answer with millions.
    documents: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_DOCUMENTS)]


async def fetch_documents(
    node: "Node", site: str, resource: str, ids: Sequence[str], timeout_s: float = _TIMEOUT_S
) -> list[Document]:
    """Those of these documents that a site has, or some of them, verified like everything that comes from another
    site."""
    body = msgspec.json.encode(DocumentRequest(resource, list(ids)))
    try:
        status, content = await node.channels.request(
            site, RequestKind.DOCUMENTS, body, timeout_s=timeout_s, most_bytes=MOST_BYTES
        )
        if status != 200:
            raise ConnectionError(f"it responded with {status}")
        found = decode_json(content, _Found).documents
        documents = [parse_document(decode_json(bytes(one), dict[str, Any]))[0] for one in found]
        wanted = [one for one in documents if id_of(key_of(one)) in ids]
        signed = [one for one in wanted if isinstance(one, Operation | Reply)]
        bad = {id(one) for one in signed if document_objection(one)}
        if node.verifier is not None:
            bad |= set(await node.verifier.objections(site, signed))
    except (OSError, ValueError, RefusedError, CheopsError) as error:
        _log.info("%s did not send documents of '%s': %s", site, printable(resource), connection_problem(error))
        return []
    return [one for one in wanted if id(one) not in bad]


async def fetch_outputs(node: "Node", replies: Iterable[Reply]) -> dict[Reply, str]:
    """The outputs of replies that came without: from the sites that made them, or from those whose operations they
    are about. Those that nobody sends are missing."""
    cut = [reply for reply in replies if reply.is_cut]
    found = await asyncio.gather(*(_fetch_output(node, reply) for reply in cut))
    return {reply: output for reply, output in zip(cut, found, strict=True) if output}


async def _fetch_output(node: "Node", reply: Reply) -> str:
    for site in _keepers(reply):
        if site == node.name or site not in node.mesh.up:
            continue
        for one in await fetch_documents(node, site, reply.resource, [id_of(key_of(reply))], _OUTPUT_TIMEOUT_S):
            if isinstance(one, Reply) and one.output and one.output_hash == reply.output_hash:
                return one.output
    return ""


def _keepers(reply: Reply) -> list[str]:
    """The sites that have the output of a reply."""
    return list(dict.fromkeys([reply.origin.site, *([reply.op.origin.site] if reply.op else [])]))


def why_missing(node: "Node", reply: Reply) -> str:
    """Why an output is not here."""
    down = [site for site in _keepers(reply) if site != node.name and site not in node.mesh.up]
    if down:
        return f"{in_words(down)} cannot be reached now"
    return f"{in_words(_keepers(reply))} did not send it, or no longer keep it"
