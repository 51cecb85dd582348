"""Keys of sites: this site signs what it commits, and keeps the certificates of the sites whose documents it gets.

A site that connects shows its certificate. Any other certificate is requested from the site that sent the document
which needs it, then from the site itself. The authority's signature proves a certificate, so any site may send it.

Certificates are kept for good, in one note of the store per site: a document outlives the certificate of its signer. A
site has one for each signing key that it ever had; of several for one key the newest counts. Only certificates of the
mesh's authority are taken, so the authority decides how many there are; the number is bounded all the same.
"""

import asyncio
import logging
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from cheops.bounded import BoundedMap
from cheops.errors import CheopsError, Fault
from cheops.log.operation import Origin
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.client import decode_json
from cheops.peers.reports import ReportSigner
from cheops.peers.requests import RequestKind
from cheops.security.signatures import Signer, key_id
from cheops.security.signatures import read as read_signature
from cheops.store.batch import DocumentSigner, sign_stored_documents
from cheops.store.interface import Store, StoreError
from cheops.store.sqlite import SQLiteStore

if TYPE_CHECKING:
    from cheops.security.certificates import Authorities, Identity
    from cheops.security.keyring import Keyring

MOST_KEYS = 64  # of one site
MOST_SITES = 4_096  # in memory
MOST_BYTES = 512 * 1024  # of a response
_IDENTITY_NOTE = "identity/"
_SIGNED_NOTE = "signed"
_MOST_AT_ONCE = 16  # sites whose certificates are requested for one batch of documents
_TIMEOUT_S = 5.0
_AGAIN_S = 2.0  # before the same site is asked for the same certificates again
_log = logging.getLogger(__name__)


class SiteCertificates:
    """The certificates of one site, by the id of the signing key."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._by_key: dict[str, Identity] = {}

    def get(self, id_: str) -> "Identity | None":
        return self._by_key.get(id_)

    @property
    def certificates(self) -> list[bytes]:
        return [identity.der for identity in self._by_key.values()]

    @property
    def newest_ms(self) -> int:
        return max((identity.made_ms for identity in self._by_key.values()), default=0)

    def add(self, identity: "Identity") -> bool:
        """Returns whether it is new; raises CheopsError if there are too many already."""
        id_ = key_id(identity.signing_key)
        before = self._by_key.get(id_)
        if before is not None and before.made_ms >= identity.made_ms:
            return False
        if before is None and len(self._by_key) >= MOST_KEYS:
            raise _invalid(f"'{self.site}' has had {MOST_KEYS} keys; no more are accepted")
        self._by_key[id_] = identity
        return True

    def note(self) -> dict[str, Any]:
        return {"certificates": [b64encode(der).decode("ascii") for der in self.certificates]}


def certificates_of_note(site: str, note: object) -> SiteCertificates:
    """From the store. Each was verified when it arrived; its authority may not be trusted any more, and need not be."""
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - slow to import

    certificates = SiteCertificates(site)
    for der in certificates_in(note) if note is not None else ():
        certificates.add(identity_of(der))
    return certificates


def verify_certificates(site: str, content: object, authorities: "Authorities") -> "list[Identity]":
    """From another site: all must be of this site, and of the mesh's authority. Raises CheopsError."""
    identities = [authorities.verify(der, None) for der in certificates_in(content)]
    if other := next((identity for identity in identities if identity.site != site), None):
        raise _invalid(f"asked for '{site}', and got a certificate of '{other.site}'")
    return identities


def certificates_in(content: object) -> list[bytes]:
    """The certificates in a note or a response; raises CheopsError."""
    texts = content.get("certificates") if isinstance(content, dict) else None
    if not isinstance(texts, list) or len(texts) > MOST_KEYS:
        raise _invalid("these are not the certificates of a site")
    try:
        return [b64decode(text, validate=True) for text in texts]
    except (BinasciiError, ValueError, TypeError):
        raise _invalid("these are not the certificates of a site") from None


def _invalid(text: str) -> CheopsError:
    return CheopsError(text, status=403, fault=Fault.PEER)


class SiteKeys:
    """Belongs to one event loop. `others` gives further sites to ask, the best first."""

    def __init__(
        self,
        keyring: "Keyring",
        channels: ChannelPool,
        store: Store,
        writer: Executor,
        others: Callable[[], Iterable[str]],
    ) -> None:
        self._keyring = keyring
        self._channels = channels
        self._store = store
        self._writer = writer
        self._others = others
        self._known: BoundedMap[str, SiteCertificates] = BoundedMap(MOST_SITES)
        self._shown_ms: BoundedMap[str, int] = BoundedMap(MOST_SITES)
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}  # by source and site
        self._asked_s: BoundedMap[tuple[str, str], float] = BoundedMap(MOST_SITES)  # when, likewise

    def get(self, site: str, key_id: str) -> "Identity | None":
        known = self._known.get(site)
        return known.get(key_id) if known else None

    async def note_of(self, site: str) -> dict[str, Any] | None:
        """The certificates of a site, for another site; None if there are none."""
        known = await self._load(site)
        return known.note() if known.certificates else None

    async def newest_ms(self, site: str) -> int:
        """When the newest certificate was made that a site has shown, or that signed its documents."""
        return max(self._shown_ms.get(site, 0), (await self._load(site)).newest_ms)

    def note_shown(self, identity: "Identity") -> None:
        """A site has shown a certificate that was verified. Not saved: heartbeats must not wait for the store, and the
        next one comes soon."""
        self._shown_ms[identity.site] = max(self._shown_ms.get(identity.site, 0), identity.made_ms)

    async def add(self, identity: "Identity") -> None:
        """Keep a certificate that a site has shown, and that was verified."""
        await self._save(self._known.get(identity.site) or await self._load(identity.site), [identity])

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        """Get the keys of these sites, as far as another site has them."""
        sites = list(wanted)[:_MOST_AT_ONCE]
        if sites:
            await asyncio.gather(*(self._learn(site, wanted[site], sender) for site in sites))

    async def _learn(self, site: str, key_ids: set[str], sender: str) -> None:
        known = await self._load(site)
        for source in dict.fromkeys((sender, site, *self._others())):
            if all(known.get(key_id) for key_id in key_ids):
                return  # the first sources mostly suffice: the sender had to check the same documents
            if source and source != self._keyring.site and self._may_ask(source, site):
                await self._ask(source, site)

    def _may_ask(self, source: str, site: str) -> bool:
        """Whether to request the keys of a site from this source: not again within _AGAIN_S, because every forged
        document would cost a request otherwise. Joining a request that is under way is always allowed."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s.get((source, site), -_AGAIN_S) < _AGAIN_S:
            return (source, site) in self._under_way
        self._asked_s[source, site] = now_s
        return True

    async def _ask(self, source: str, site: str) -> None:
        """One request for all callers that want the same."""
        key = (source, site)
        if key not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._fetch(source, site))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        await asyncio.shield(self._under_way[key])  # a caller that is cancelled must not cancel it for the others

    async def _fetch(self, source: str, site: str) -> None:
        try:
            status, body = await self._channels.request(
                source, RequestKind.IDENTITY, site.encode(), timeout_s=_TIMEOUT_S, most_bytes=MOST_BYTES
            )
            if status != 200:
                return
            content = decode_json(body, object)
            identities = verify_certificates(site, content, self._keyring.folder.authorities)
            await self._save(await self._load(site), identities)
        except (OSError, ValueError, CheopsError) as error:
            _log.info("%s did not give the certificates of %s: %s", source, site, error or type(error).__name__)

    async def _load(self, site: str) -> SiteCertificates:
        if site not in self._known:
            name = f"{_IDENTITY_NOTE}{site}"
            note = await asyncio.get_running_loop().run_in_executor(self._writer, self._store.note, name)
            # Another task may have loaded it meanwhile: all must use the same object.
            self._known.setdefault(site, certificates_of_note(site, note))
        return self._known[site]

    async def _save(self, known: SiteCertificates, identities: "Iterable[Identity]") -> None:
        new = [identity for identity in identities if known.add(identity)]
        if not new:
            return
        name, loop = f"{_IDENTITY_NOTE}{known.site}", asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self._store.put_note, name, known.note())
        except StoreError as error:  # after a restart they are requested again
            _log.warning("cannot save the certificates of %s: %s", known.site, error)


# -- this site's own signatures ----------------------------------------------------------------------------


def start_signing(store: Store, site: str, keyring: "Keyring | None", signer: ReportSigner | None) -> None:
    """Have the store sign everything that it commits. Blocks; comes before anything is loaded."""
    signed = store.note(_SIGNED_NOTE)
    if keyring is None or signer is None:
        if signed is not None:
            store.put_note(_SIGNED_NOTE, None)  # what is committed from now on is not signed
        return
    documents = DocumentSigner(Origin(site, store.incarnation), signer.sign_documents)
    assert isinstance(store, SQLiteStore)  # noqa: S101 - the only one that outlives its process
    store.add_signatures = documents.signed
    key = key_id(keyring.identity.signing_key)
    if signed is None or signed.get("key") != key:
        # After a change of keys too: other sites refuse what the old key signed after its certificate was ended, and
        # this site has accepted operations of its clients until it got the new one.
        if count := sign_stored_documents(store, documents, lambda text: read_signature(text).key_id == key):
            _log.info("signed %d documents from before %s had its current key", count, site)
        store.put_note(_SIGNED_NOTE, {"key": key})


def report_signer(site: str, keyring: "Keyring | None") -> ReportSigner | None:
    """What signs for a site; None without security. Each thread has its own copy of the key."""
    return ReportSigner(site, RotatingSigner(keyring), RotatingSigner(keyring)) if keyring else None


class RotatingSigner:
    """Signs with the current key of the site, which may be replaced while the agent runs."""

    def __init__(self, keyring: "Keyring") -> None:
        self._keyring = keyring
        self._key = keyring.folder.signing_key
        self._signer = Signer(self._key)

    def __call__(self, contents: Sequence[bytes]) -> list[str]:
        key = self._keyring.folder.signing_key
        if key is not self._key:
            self._key, self._signer = key, Signer(key)
        return self._signer.sign(contents)
