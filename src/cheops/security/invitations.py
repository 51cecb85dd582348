"""Invitations: codes by which a new site gets its certificate, once, within a short time.

A code is one word to copy. It holds the address of the inviting site, its name, the fingerprint of its authority, the
name of the new site, and a secret. The inviting site keeps only a hash of the secret, so that a reader of its store
cannot join with it.
"""

import base64
import binascii
import hashlib
import secrets
import zlib
from typing import Annotated, Any

import msgspec

from cheops.config.address import AddressError, parse_url
from cheops.errors import ClientError
from cheops.scope.names import name_problem

NOTE = "invitations"  # where they are kept in the store
VALID_FOR_S, MAX_VALID_FOR_S = 3_600.0, 7 * 86_400.0
MAX_INVITATIONS = 1_000
MAX_CODE = 2_000  # characters
_START = "cheops-join-"
_SECRET_BYTES = 16


class InvitationError(ClientError):
    """No open invitation has this secret: there never was one, or it has expired, or it was used."""

    status = 403
    is_counted = True  # by the route that raises it
    reason = "invitation"


class Code(msgspec.Struct, frozen=True, array_like=True):
    """The content of a code."""

    url: Annotated[str, msgspec.Meta(max_length=512)]
    inviter: Annotated[str, msgspec.Meta(max_length=128)]
    site: Annotated[str, msgspec.Meta(max_length=128)]  # the new site
    fingerprint: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    secret: Annotated[bytes, msgspec.Meta(min_length=_SECRET_BYTES, max_length=64)]

    def __str__(self) -> str:
        body = msgspec.msgpack.encode(self)
        # Not against forgery, which the secret prevents, but to recognise a code that was not copied completely.
        check = zlib.crc32(body).to_bytes(4, "big")
        return _START + base64.urlsafe_b64encode(body + check).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"<the code of an invitation for {self.site}>"  # the secret must not get into logs


def parse_code(text: str) -> Code:
    """Read a code that was typed or pasted; raises ClientError."""
    word = "".join(text.split())
    if not word:
        raise ClientError("there is no code: give it at the prompt, on standard input or with --code-file")
    if not word.startswith(_START) or len(word) > MAX_CODE:
        raise ClientError(f"this is not the code of an invitation: codes start with {_START}")
    try:
        raw = base64.b64decode(word.removeprefix(_START) + "==", altchars=b"-_", validate=False)
        body, check = raw[:-4], raw[-4:]
        if zlib.crc32(body).to_bytes(4, "big") != check:
            raise ClientError("the code is damaged: it was not copied completely, or it was changed")
        code = msgspec.msgpack.decode(body, type=Code)
        parse_url(code.url)
    except (binascii.Error, ValueError, msgspec.MsgspecError, AddressError):
        raise ClientError("the code is damaged, or of another version of Cheops") from None
    for name in (code.site, code.inviter):
        if problem := name_problem(name):
            raise ClientError(f"the code names a site wrongly: {problem}")
    return code


def new_secret() -> bytes:
    return secrets.token_bytes(_SECRET_BYTES)


class Invitation(msgspec.Struct, frozen=True):
    """An open invitation. `addresses` are those that the new site may have although another site has them."""

    site: str
    expires_ms: int
    addresses: tuple[str, ...] = ()


class Invitations:
    """The open invitations, by the hashes of their secrets. Immutable: a change gives a new set."""

    def __init__(self, open_: dict[str, Invitation] | None = None) -> None:
        self._open = dict(open_ or {})

    @classmethod
    def of_note(cls, note: dict[str, Any] | None) -> "Invitations":
        rows = (note or {}).get("open", {})
        return cls({hash_: Invitation(site, at, tuple(to)) for hash_, (site, at, to) in rows.items()})

    def note(self) -> dict[str, Any]:
        return {"open": {h: [one.site, one.expires_ms, list(one.addresses)] for h, one in self._open.items()}}

    def add(self, secret: bytes, invitation: Invitation, now_ms: int) -> "Invitations":
        """The set with one more invitation, which replaces another one for the same site."""
        left = {h: one for h, one in self._current(now_ms).items() if one.site != invitation.site}
        if len(left) >= MAX_INVITATIONS:
            raise ClientError(f"{MAX_INVITATIONS:,} sites are invited already; wait until some have joined", status=409)
        return Invitations({**left, _hash(secret): invitation})

    def take(self, secret: bytes, now_ms: int) -> "tuple[Invitation, Invitations]":
        """The invitation with this secret, and those that remain; raises InvitationError."""
        current = self._current(now_ms)
        invitation = current.pop(_hash(secret), None)
        if invitation is None:
            raise InvitationError(
                "there is no such invitation: it was used, it has expired, or a newer one for the same site "
                "replaced it. Ask for a new one ('cheops site invite'). If it was used, and not by you, somebody else "
                "has the certificate: docs/certificates-trouble.md#somebody-else-used-a-code"
            )
        return invitation, Invitations(current)

    def _current(self, now_ms: int) -> dict[str, Invitation]:
        return {hash_: one for hash_, one in self._open.items() if one.expires_ms > now_ms}


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
