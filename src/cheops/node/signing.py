"""From when on a site signs: from its start on, if it has a key. What it kept before is signed then, once."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cheops.log.operation import Origin
from cheops.security.signatures import Signer
from cheops.store.base import Store
from cheops.store.signing import Signing, sign_what_is_kept
from cheops.store.sqlite import SQLiteStore

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring

_NOTE = "signed"
_log = logging.getLogger(__name__)


def begin_signing(store: Store, site: str, keyring: "Keyring | None") -> None:
    """Have everything signed that this store commits. Blocks; to be called before anything is loaded."""
    was_signed = store.local(_NOTE) is not None
    if keyring is None:
        if was_signed:
            store.put_local(_NOTE, None)  # what comes now is not signed
        return
    signing = Signing(Origin(site, store.incarnation), _Signing(keyring))
    assert isinstance(store, SQLiteStore)  # noqa: S101 - the only one that outlives its process
    store.add_signatures = signing.signed
    if not was_signed:
        if count := sign_what_is_kept(store, signing):
            _log.info("%d documents were signed that were kept before %s had a key", count, site)
        store.put_local(_NOTE, {"all": True})


class _Signing:
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
