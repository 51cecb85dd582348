"""AWS Signature Version 4: what a site signs itself when it runs a change of another site.

A client's signature is good for its own site and for some minutes, so no other site can use it. The key is read from a
file as the AWS tools write it, again after a while and when the service refuses it, and is never shown or logged.

A body with a signature of its own for each chunk (`STREAMING-AWS4-…`) could not be sent by another site: the chunks
would need new signatures. `refuse_signed_chunks` refuses such a change before anything is done.
"""

import asyncio
import configparser
import hashlib
import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from cheops.backends.http.credentials import CredentialsError
from cheops.config.service_credentials import SigV4Config
from cheops.errors import ClientError

Header = tuple[str, str]
CONTENT_HASH = "x-amz-content-sha256"
_OWN = ("authorization", "x-amz-date", "x-amz-security-token", "date")
_SIGNED = ("host", "content-type", "content-md5")  # and all that begin with x-amz-
_SIGNED_CHUNKS = "STREAMING-AWS4-"
_KEY_S = 60.0
_MAX_BYTES = 64 * 1024
# What services answer to a key or a signature, rather than to the request.
_REFUSED_KEY = (b"InvalidAccessKeyId", b"SignatureDoesNotMatch", b"ExpiredToken", b"RequestTimeTooSkewed")
_FORBIDDEN = (400, 403)


class AccessKey(NamedTuple):
    """Never shown: its secret would be in the text."""

    id: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return "AccessKey(…)"


def sign(  # noqa: PLR0913 - a request's parts
    key: AccessKey,
    config: SigV4Config,
    at: datetime,
    *,
    method: str,
    path: str,
    query: str,
    headers: tuple[Header, ...],
    content_hash: str,
) -> tuple[Header, ...]:
    """The headers of a request with a signature. `path` and `query` as they are sent."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    kept = tuple(pair for pair in headers if pair[0].lower() not in (*_OWN, CONTENT_HASH))
    headers = (*kept, ("X-Amz-Date", stamp), ("X-Amz-Content-SHA256", content_hash))
    if key.token:
        headers = (*headers, ("X-Amz-Security-Token", key.token))
    signed = sorted((name.lower(), " ".join(value.split())) for name, value in headers if _is_signed(name))
    names = ";".join(dict.fromkeys(name for name, _ in signed))
    request = "\n".join(
        (
            method,
            _canonical_path(path, config.service),
            _canonical_query(query),
            *(f"{name}:{value}" for name, value in signed),
            "",
            names,
            content_hash,
        )
    )
    place = f"{stamp[:8]}/{config.region}/{config.service}/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, place, hashlib.sha256(request.encode()).hexdigest()))
    derived = f"AWS4{key.secret}".encode()
    for part in place.split("/"):
        derived = hmac.digest(derived, part.encode(), "sha256")
    signature = hmac.digest(derived, text.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={key.id}/{place}, SignedHeaders={names}, Signature={signature}"
    return (*headers, ("Authorization", credential))


def _is_signed(name: str) -> bool:
    return name.lower() in _SIGNED or name.lower().startswith("x-amz-")


def _canonical_path(path: str, service: str) -> str:
    """S3 encodes each part of a path once, all other services twice."""
    once = "/".join(quote(unquote(part), safe="-_.~") for part in path.split("/")) or "/"
    return once if service == "s3" else quote(once, safe="/-_.~")


def _canonical_query(query: str) -> str:
    members = parse_qsl(query, keep_blank_values=True)
    return "&".join(f"{name}={value}" for name, value in sorted((_spelled(one), _spelled(two)) for one, two in members))


def _spelled(text: str) -> str:
    return quote(text, safe="-_.~")


def refuse_signed_chunks(headers: tuple[Header, ...]) -> None:
    """Raises ClientError."""
    if any(name.lower() == CONTENT_HASH and value.startswith(_SIGNED_CHUNKS) for name, value in headers):
        raise ClientError(
            "each chunk of this body has a signature of the client, so no other site could send it: sign the request "
            "as a whole (x-amz-content-sha256 with the hash of the body, or UNSIGNED-PAYLOAD)",
            status=422,
        )


def is_refused_key(status: int, body: bytes) -> bool:
    """Whether a service refused the signature, and not what was asked for."""
    return status in _FORBIDDEN and any(code in body for code in _REFUSED_KEY)


class RequestSigner:
    """Signs the requests of one service with the key of this site."""

    def __init__(self, service: str, config: SigV4Config, clock: Callable[[], float] = time.time) -> None:
        self.where = f"services.{service}.sign.sigv4"
        self._config = config
        self._clock = clock
        self._key: AccessKey | None = None
        self._until_s = 0.0

    def forget(self) -> None:
        """The service refused the key: read it again the next time."""
        self._until_s = 0.0

    async def signed(
        self, method: str, target: str, headers: tuple[Header, ...], content_hash: str
    ) -> tuple[Header, ...]:
        """Raises CredentialsError."""
        if self._key is None or time.monotonic() >= self._until_s:
            self._key = await asyncio.to_thread(self._read, self._config.file)
            self._until_s = time.monotonic() + _KEY_S
        path, _, query = target.partition("?")
        return sign(
            self._key,
            self._config,
            datetime.fromtimestamp(self._clock(), UTC),
            method=method,
            path=path,
            query=query,
            headers=headers,
            content_hash=content_hash,
        )

    def _read(self, path: Path) -> AccessKey:
        found = configparser.ConfigParser(interpolation=None)
        try:
            with path.open(encoding="utf-8") as file:
                found.read_string(file.read(_MAX_BYTES))
            section = found[self._config.profile]
            return AccessKey(
                section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", "")
            )
        except OSError as error:
            raise CredentialsError(f"{self.where}.file: {path}: {error.strerror}") from None
        except (configparser.Error, KeyError, UnicodeDecodeError):  # without the text: it may have the secret in it
            raise CredentialsError(
                f"{self.where}.file: {path} has no aws_access_key_id and aws_secret_access_key below "
                f"[{self._config.profile}]"
            ) from None
