"""Tell by web hook: POST the event as JSON, signed. Any answer of 200 to 299 means that it was taken.

What else is in the answer is not read, so it may be as long or as odd as it likes.
"""

import time

import aiohttp

from cheops import __version__
from cheops.config.notify import WebhookConfig
from cheops.notify.events import Event, encoded
from cheops.notify.sending import DeliveryError, read_secret
from cheops.notify.signature import HEADER, sign
from cheops.text import printable, shortened


def session() -> aiohttp.ClientSession:
    """For web hooks alone: no cookies, no unpacking, nothing shared with the traffic between sites."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"User-Agent": f"cheops/{__version__}"},
        connector=aiohttp.TCPConnector(limit_per_host=4),
    )


class Webhook:
    """See `sending.Sender`. Redirections are not followed: what is signed is for one receiver."""

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
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise DeliveryError(f"it answered {answer.status}")
        except TimeoutError as error:
            raise DeliveryError(f"no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DeliveryError(printable(shortened(str(error) or type(error).__name__, 300))) from error

    def _headers(self, event: Event, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": event.id,
            "Cheops-Event": event.kind.value,
            "Cheops-Sequence": str(event.sequence),
        }
        if self._config.secret_file is not None:
            headers[HEADER] = sign(read_secret(self._config.secret_file), body, int(time.time()))
        return headers
