"""Events as signed JSON by POST. Any status from 200 to 299 means accepted; the body of the response is not read, so it
may be arbitrarily long. See senders.py."""

import time

import aiohttp

from cheops import __version__
from cheops.config.notify import WebhookConfig
from cheops.notify.event import Event, encoded
from cheops.notify.senders import DeliveryError, read_secret
from cheops.notify.signature import HEADER, sign
from cheops.peers.http_client import http_problem
from cheops.text import printable, shortened


def webhook_session() -> aiohttp.ClientSession:
    """For web hooks alone: no cookies, no unpacking, nothing shared with the traffic between sites."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"cheops/{__version__}"},
        connector=aiohttp.TCPConnector(limit_per_host=4),  # targets of one receiver share these, not all of its sockets
    )


class WebhookSender:
    """See `Sender`. Redirections are not followed: the signature is meant for one receiver."""

    def __init__(self, config: WebhookConfig, timeout_s: float, http: aiohttp.ClientSession) -> None:
        self._config = config
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http = http

    async def send(self, event: Event) -> None:
        body = encoded(event)
        try:
            async with self._http.post(
                self._config.url,
                data=body,
                headers=self._headers(event, body),
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                if not 200 <= response.status < 300:
                    raise DeliveryError(f"it answered {response.status}")
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(printable(shortened(http_problem(error), 300))) from error

    def _headers(self, event: Event, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": event.id,
            "Cheops-Event": event.kind,
            "Cheops-Sequence": str(event.sequence),
        }
        if self._config.secret_file is not None:
            headers[HEADER] = sign(read_secret(self._config.secret_file), body, int(time.time()))
        return headers
