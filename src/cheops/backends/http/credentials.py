"""Credentials: those of clients, and those with which this site runs what was accepted at another site.

A client's are used only at the site that accepted its request, and only until its service has decided about it. They
are kept in memory only, under a ticket that the operation carries. If they are forgotten before that, the operation
does not run: never with any others.

A decided operation runs with credentials that come from a file or a command, as lines of headers
(`X-Auth-Token: …`): the site's own, or those that it has for this client. They are read again after a while, and when
the service refuses them.
"""

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote
from weakref import WeakValueDictionary

from cheops.backends.command.runner import CommandRunner
from cheops.backends.http.payload import KeptResponse
from cheops.bounded import BoundedMap
from cheops.config.command import CommandSettings
from cheops.config.service_credentials import AuthConfig
from cheops.errors import CheopsError
from cheops.text import printable, shortened

MAX_BYTES = 64 * 1024
MAX_TICKETS = 10_000
TICKET_S = 600.0
NOTHING = "-"  # the ticket of a client without credentials: there is nothing to forget
CLIENT_VARIABLE = "CHEOPS_CLIENT"
_MAX_ANSWERS = 64
_MAX_CLIENTS = 10_000
_COMMAND_S = 30.0
_LINE = re.compile(r"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
Header = tuple[str, str]


class CredentialsError(CheopsError):
    """The credentials for an operation cannot be read. The text never contains them."""

    status = 503
    definite = False
    reason = "credentials"


class CredentialProvider:
    """The credentials with which this site runs operations on one service. `client` is empty for the site's own."""

    def __init__(self, service: str, config: AuthConfig, runner: CommandRunner) -> None:
        self.where = f"services.{service}.auth"
        self._config = config
        self._runner = runner
        self._known: BoundedMap[str, tuple[float, tuple[Header, ...]]] = BoundedMap(_MAX_CLIENTS)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def headers(self, client: str = "") -> tuple[Header, ...]:
        """Raises CredentialsError."""
        async with self._asking.setdefault(client, asyncio.Lock()):
            until_s, headers = self._known.get(client, (0.0, ()))
            if time.monotonic() >= until_s:
                headers = self._parsed(await self._text(client), client)
                self._known[client] = (time.monotonic() + self._config.every_s, headers)
        return headers

    def forget(self, client: str = "") -> None:
        """The service refused them: read them again the next time."""
        self._known.pop(client, None)

    async def _text(self, client: str) -> str:
        if self._config.command:
            return await self._printed(client)
        if self._config.folder is None:
            assert self._config.file  # noqa: S101 - one of the three is there
            return await asyncio.to_thread(self._read, self._config.file, f"{self.where}.file")
        name = quote(client, safe="@")
        if not client or name in (".", ".."):
            raise CredentialsError(f"{self.where}.folder: '{_shown(client)}' cannot be the name of a file")
        path = self._config.folder / name
        return await asyncio.to_thread(self._read, path, f"{self.where}.folder has nothing for this client")

    def _read(self, path: Path, where: str) -> str:
        try:
            with path.open("rb") as file:
                return file.read(MAX_BYTES).decode("latin-1")
        except OSError as error:
            raise CredentialsError(f"{where}: {path}: {error.strerror}") from None

    async def _printed(self, client: str) -> str:
        env = {CLIENT_VARIABLE: client} if client else {}
        settings = CommandSettings(allow=("...",), timeout_s=_COMMAND_S, max_output_bytes=MAX_BYTES, env=env)
        line = shlex.join(self._config.command)
        done = await self._runner.run(line, settings, resource="-", with_errors=False)
        if done.exit_code != 0:
            how = f"exit code {done.exit_code}" if done.exit_code is not None else done.status.value
            whose = f" for '{_shown(client)}'" if client else ""
            raise CredentialsError(f"{self.where}.command: {self._config.command[0]} gave no credentials{whose}: {how}")
        return done.output

    def _parsed(self, text: str, client: str = "") -> tuple[Header, ...]:
        lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
        found = [_LINE.fullmatch(line.rstrip()) for line in lines]
        if not found or None in found:
            whose = f" for '{_shown(client)}'" if client else ""
            raise CredentialsError(f"{self.where}: expected lines of headers{whose}, such as 'X-Auth-Token: …'")
        return tuple((one[1], one[2]) for one in found if one)


def _shown(client: str) -> str:
    return printable(shortened(client))


class Tickets:
    """Credentials of clients whose requests are about to run here, and what only they may see of the response: in
    memory only, for a short time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: BoundedMap[str, tuple[float, tuple[Header, ...]]] = BoundedMap(MAX_TICKETS)
        self._answers: BoundedMap[str, tuple[float, KeptResponse]] = BoundedMap(_MAX_ANSWERS)

    def issue(self, credentials: tuple[Header, ...], *, always: bool = False) -> str:
        """`always`: also for a client without credentials, so that a restart of the agent shows."""
        if not credentials and not always:
            return NOTHING
        ticket = secrets.token_hex(8)
        self._kept[ticket] = (self._clock() + TICKET_S, credentials)
        # Credentials must not stay longer than they are of use.
        for kept in (self._kept, self._answers):
            while kept and next(iter(kept.values()))[0] < self._clock():
                kept.evict()
        return ticket

    def credentials(self, ticket: str) -> tuple[Header, ...] | None:
        """None: they are forgotten, or belong to another site's ticket."""
        if ticket == NOTHING:
            return ()
        until_s, found = self._kept.get(ticket, (0.0, None))
        return found if until_s >= self._clock() else None

    def forget(self, ticket: str) -> None:
        """The service has decided about the request."""
        self._kept.pop(ticket, None)

    def keep_answer(self, key: str, response: KeptResponse) -> None:
        """Keep a response with secrets until its client gets it."""
        self._answers[key] = (self._clock() + TICKET_S, response)

    def take_answer(self, key: str) -> KeptResponse | None:
        until_s, found = self._answers.pop(key, (0.0, None))
        return found if until_s >= self._clock() else None
