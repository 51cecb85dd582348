"""The keys and certificates of a running site: loaded once, replaced while it runs, and what follows from it.

Whoever connects takes `client` and `host_of(site)` anew for each connection; whoever serves holds on to
`server` (for everybody) or `server_for_sites`, which follow. So a new certificate, or another list of
authorities, holds from the next connection on, and no connection that is there is disturbed.
"""

import logging
import ssl
from collections.abc import Callable

from cheops.config.security import SecurityConfig
from cheops.security.certificates import Authorities, Authority, Identity
from cheops.security.key_folder import AUTHORITIES, CERTIFICATE, KeyFolder, load_authority, load_key_folder, write_file
from cheops.security.names import dns_name
from cheops.security.refusals import Refusals
from cheops.security.tls import ServerContext, client_context

_MOST_HOSTS = 10_000
_log = logging.getLogger(__name__)


class Keyring:
    """What one site shows and believes. Raises FolderError where its folder is not right."""

    def __init__(self, config: SecurityConfig, site: str, refusals: Refusals) -> None:
        if config.folder is None:
            raise ValueError("there is no keyring without security")
        self.site = site
        self._config = config
        self._path = config.folder
        self._refusals = refusals
        self._hosts: dict[str, str] = {}  # names of sites, by the host names that stand for them
        self.changed: list[Callable[[], None]] = []  # called when something new is held
        self._hold(load_key_folder(self._path, site))
        self.server = ServerContext(self.folder, self._refused_caller)
        self.server_for_sites = ServerContext(self.folder, self._refused_caller, sites_only=True)

    @property
    def identity(self) -> Identity:
        return self.folder.identity

    @property
    def authority(self) -> Authority | None:
        """The one whose key this site has, if it has one."""
        return self._authority

    @property
    def issues(self) -> str:
        """What it says to others of that: see sync/heartbeat.py."""
        return self.folder.authorities.digest if self._authority else ""

    def host_of(self, site: str) -> str:
        """The host name that a connection to a site must be verified by."""
        host = dns_name(site)
        if len(self._hosts) < _MOST_HOSTS:
            self._hosts[host] = site
        return host

    def reload(self) -> None:
        """Take what stands in the folder now; on FolderError all stays as it was."""
        self._hold(load_key_folder(self._path, self.site))
        self.server.replace(self.folder)
        self.server_for_sites.replace(self.folder)
        for tell in self.changed:
            tell()

    def install(self, renewed: Identity, authorities: Authorities | None = None) -> None:
        """Keep a new certificate of the same keys, and what to believe from now on; and use both.

        In this order: the new certificate is of an authority that was and will be believed, the old one may
        not be. So the folder is right also if this is cut short.
        """
        write_file(self._path / CERTIFICATE, renewed.pem, secret=False)
        if authorities is not None and authorities.digest != self.folder.authorities.digest:
            write_file(self._path / AUTHORITIES, authorities.pem, secret=False)
        self.reload()

    def _hold(self, folder: KeyFolder) -> None:
        ca_key = self._config.ca_key
        authority = load_authority(ca_key, folder.authorities) if ca_key else None
        client = client_context(folder, self._refused_site)
        self.folder: KeyFolder = folder
        self.client: ssl.SSLContext = client
        self._authority = authority

    def _refused_caller(self, reason: str, detail: str, _host: str | None) -> None:
        self._refusals.count(reason, detail=detail)

    def _refused_site(self, reason: str, detail: str, host: str | None) -> None:
        site = self._hosts.get(host or "", host or "")
        _log.info("%s was not reached: %s (%s)", site, reason, detail)
        self._refusals.count(reason, site, detail)
