"""Keys of sites: this site signs what it commits, and knows the certificates of the sites whose documents come here.

A site that connects shows its certificate. Any other is requested from the site that sent a document which needs
it, then from the site itself; the authority's signature says whether the answer is right, so it does not matter
who gives it. Each site's certificates are kept for good in a note of the store.
"""

import asyncio
import logging
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp

from cheops.errors import CheopsError, Fault
from cheops.log.operation import Origin
from cheops.peers.client import PeerClient, decode_json
from cheops.security.signatures import Signer, key_id
from cheops.store.batch import DocumentSigner, sign_stored_documents
from cheops.store.interface import Store, StoreError
from cheops.store.sqlite import SQLiteStore

if TYPE_CHECKING:
    from cheops.security.certificates import Authorities, Identity
    from cheops.security.keyring import Keyring

MOST_KEYS = 64  # of one site
MOST_SITES = 4_096  # in memory
MOST_BYTES = 512 * 1024  # of what one site tells of another


class IdentityError(CheopsError):
    """What was told of a site cannot be taken."""

    fault = Fault.PEER
    status = 403


class SiteCertificates:
    """The keys of one site."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._by_key: dict[str, Identity] = {}

    def get(self, id_: str) -> "Identity | None":
        return self._by_key.get(id_)

    @property
    def certificates(self) -> list[bytes]:
        return [identity.der for identity in self._by_key.values()]

    def add(self, identity: "Identity") -> bool:
        """Whether it is news; raises IdentityError where there are too many already."""
        id_ = key_id(identity.signing_key)
        before = self._by_key.get(id_)
        if before is not None and before.made_ms >= identity.made_ms:
            return False
        if before is None and len(self._by_key) >= MOST_KEYS:
            raise IdentityError(f"'{self.site}' has had {MOST_KEYS} keys; no more of them are taken")
        self._by_key[id_] = identity
        return True

    def note(self) -> dict[str, Any]:
        return {"certificates": [b64encode(der).decode("ascii") for der in self.certificates]}


def certificates_of_note(site: str, note: object) -> SiteCertificates:
    """What was kept. It was verified when it came in: authorities may have gone since."""
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - slow to import

    known = SiteCertificates(site)
    for der in certificates_in(note) if note is not None else ():
        known.add(identity_of(der))
    return known


def verify_certificates(site: str, told: object, authorities: "Authorities") -> "list[Identity]":
    """What was told of a site, if all of it is that site's and of the mesh; raises a CheopsError."""
    found = [authorities.verify(der, None) for der in certificates_in(told)]
    if strange := next((identity for identity in found if identity.site != site), None):
        raise IdentityError(f"asked for '{site}', and got a certificate of '{strange.site}'")
    return found


def certificates_in(told: object) -> list[bytes]:
    """The certificates in a note or an answer; raises IdentityError."""
    texts = told.get("certificates") if isinstance(told, dict) else None
    if not isinstance(texts, list) or len(texts) > MOST_KEYS:
        raise IdentityError("these are not the certificates of a site")
    try:
        return [b64decode(text, validate=True) for text in texts]
    except (BinasciiError, ValueError, TypeError):
        raise IdentityError("these are not the certificates of a site") from None


IDENTITY_PATH = "peer/identity"
_IDENTITY_NOTE = "identity/"
_MOST_AT_ONCE = 16  # sites whose certificates are asked for because of one request
_TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=3)
_AGAIN_S = 2.0  # not before is the same asked again
_log = logging.getLogger(__name__)


class SiteKeys:
    """Belongs to one event loop. `others` gives further sites that could be asked, the best first."""

    def __init__(
        self,
        keyring: "Keyring",
        client: PeerClient,
        store: Store,
        writer: Executor,
        others: Callable[[], Iterable[str]],
    ) -> None:
        self._keyring = keyring
        self._client = client
        self._store = store
        self._writer = writer
        self._others = others
        self._known: dict[str, SiteCertificates] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._asked_s: dict[tuple[str, str], float] = {}

    def get(self, site: str, key_id: str) -> "Identity | None":
        known = self._known.get(site)
        return known.get(key_id) if known else None

    async def note_of(self, site: str) -> dict[str, Any] | None:
        """What can be told of a site, as its note has it; None if nothing is known."""
        known = await self._loaded(site)
        return known.note() if known.certificates else None

    async def meet(self, identity: "Identity") -> None:
        """A site showed a certificate, which was verified."""
        known = self._known.get(identity.site) or await self._loaded(identity.site)
        await self._add(known, [identity])

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        """Have the keys of these sites, as far as they can be had."""
        sites = list(wanted)[:_MOST_AT_ONCE]
        if sites:
            await asyncio.gather(*(self._learn(site, wanted[site], sender) for site in sites))

    async def _learn(self, site: str, key_ids: set[str], sender: str) -> None:
        known = await self._loaded(site)
        for asked in dict.fromkeys((sender, site, *self._others())):
            if all(known.get(key_id) for key_id in key_ids):
                return
            if asked and asked != self._keyring.site and self._is_time_to_ask(asked, site):
                await self._ask(asked, site)

    def _is_time_to_ask(self, asked: str, site: str) -> bool:
        """Unless it was asked just now: then its answer is waited for, if that is still to come."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s.get((asked, site), -_AGAIN_S) < _AGAIN_S:
            return (asked, site) in self._under_way
        if len(self._asked_s) > MOST_SITES:
            self._asked_s.clear()
        self._asked_s[asked, site] = now_s
        return True

    async def _ask(self, asked: str, site: str) -> None:
        """Once for all who want to know it at the same time."""
        key = (asked, site)
        if key not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._fetch(asked, site))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        await asyncio.shield(self._under_way[key])

    async def _fetch(self, asked: str, site: str) -> None:
        path = f"/{IDENTITY_PATH}/{quote(site, safe='')}"
        try:
            async with self._client.request(asked, "GET", path, timeout=_TIMEOUT) as answer:
                if answer.status != 200:
                    return
                told = decode_json(await _read(answer), object)
            found = verify_certificates(site, told, self._keyring.folder.authorities)
            await self._add(await self._loaded(site), found)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, CheopsError) as error:
            _log.info("%s could not tell who %s is: %s", asked, site, error or type(error).__name__)

    async def _loaded(self, site: str) -> SiteCertificates:
        if site not in self._known:
            note = await asyncio.get_running_loop().run_in_executor(
                self._writer, self._store.note, f"{_IDENTITY_NOTE}{site}"
            )
            while len(self._known) >= MOST_SITES:
                del self._known[next(iter(self._known))]
            self._known.setdefault(site, certificates_of_note(site, note))
        return self._known[site]

    async def _add(self, known: SiteCertificates, identities: "Iterable[Identity]") -> None:
        news = [identity for identity in identities if known.add(identity)]
        if news:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(
                    self._writer, self._store.put_note, f"{_IDENTITY_NOTE}{known.site}", known.note()
                )
            except StoreError as error:  # it can be asked for again
                _log.warning("the certificates of %s could not be kept: %s", known.site, error)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise IdentityError("more than anybody has to tell of a site")
    return bytes(body)


_SIGNED_NOTE = "signed"


def start_signing(store: Store, site: str, keyring: "Keyring | None") -> None:
    """Have everything signed that this store commits. Blocks; to be called before anything is loaded."""
    was_signed = store.note(_SIGNED_NOTE) is not None
    if keyring is None:
        if was_signed:
            store.put_note(_SIGNED_NOTE, None)  # what comes now is not signed
        return
    signing = DocumentSigner(Origin(site, store.incarnation), _RotatingSigner(keyring))
    assert isinstance(store, SQLiteStore)  # noqa: S101 - the only one that outlives its process
    store.add_signatures = signing.signed
    if not was_signed:
        if count := sign_stored_documents(store, signing):
            _log.info("%d documents were signed that were kept before %s had a key", count, site)
        store.put_note(_SIGNED_NOTE, {"all": True})


class _RotatingSigner:
    """With the key that the site has now: it may be replaced while it runs."""

    def __init__(self, keyring: "Keyring") -> None:
        self._keyring = keyring
        self._key = keyring.folder.signing_key
        self._signer = Signer(self._key)

    def __call__(self, contents: Sequence[bytes]) -> list[str]:
        key = self._keyring.folder.signing_key
        if key is not self._key:
            self._key, self._signer = key, Signer(key)
        return self._signer.sign(contents)
