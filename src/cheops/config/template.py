"""The configuration file that `cheops init` writes: valid as it stands, with comments for who edits it."""

import json
import re
from collections.abc import Mapping

from cheops.config.address import Address

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NOT_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))

_TEXT = """\
# The configuration of one site. `cheops config check` reads it and says what the site would be.
# Every setting, its default and its unit: docs/configuration.md

# The name of this site, as scopes and other sites call it.
site: {site}

# Where the agent listens. Others are told the same address; if they need another one, or if this is a
# wildcard (0.0.0.0), set `advertise`.
listen: {listen}
{advertise}

# Who this site is to others, and whom it believes: docs/security.md.
# `none` is plain HTTP, and only for sites that are all on one machine; else say where the certificates are.
security: {security}

# Where the site keeps what must survive a restart; starts at the directory of this file.
data: ./data

# The other sites. All sites may use the same list: a site's own name in it is ignored.
{peers}

# The application's HTTP services at this site. Clients use `listen`, and say with the header Scope where a
# request is executed; the application itself uses `outbound` for its calls to other services.
# services:
#   image:
#     url: http://127.0.0.1:9292
#     listen: 127.0.0.1:9392
#     outbound: 127.0.0.1:9492
#     auth: {{file: image.headers}}   # this site's own credentials, for what is replicated from other sites

# Types of resources: how changes combine when they meet (docs/matrix.md), and which commands may be run.
types:
  # Used for resources whose type is not given.
  default:
    matrix:
      - {{before: set, after: set, result: take-one}}
    # Commands that operations may bring, word by word; * is one word, a last ... any further ones.
    # Nothing is allowed until you say so.
    allow: []
    # Commands that 'cheops show --command' may run: such as only read. The type's own `read` always may.
    show: []
    timeout: 30s

  # A counter in Redis. __ID__ is the id of the resource.
  # counter:
  #   matrix:
  #     - {{before: set, after: set, result: take-one}}
  #     - {{before: set, after: inc, result: take-both-keep-order}}
  #     - {{before: inc, after: inc, result: take-both}}
  #   allow: ["redis-cli set * *", "redis-cli incrby * *"]
  #   read: redis-cli get __ID__
  #   show: ["redis-cli strlen *"]
  #   reset: redis-cli set __ID__ 0
  #   limits: {{cpu: 10s, memory: 1GiB}}

# How often peers are asked whether they are there, and after which silence one counts as down.
heartbeat: {{every: 1s, down_after: 5s}}
"""


def site_file(
    site: str, listen: Address, advertise: str | None, peers: Mapping[str, str], folder: str | None = None
) -> str:
    """The text of a configuration file for this site. Without a folder of certificates it is plain HTTP."""
    example = "https://10.0.0" if folder else "http://127.0.0"
    return _TEXT.format(
        site=_scalar(site),
        listen=_scalar(str(listen)),
        advertise=f"advertise: {_scalar(advertise)}" if advertise else f"# advertise: {example}.1:8079",
        security=f"{{folder: {_scalar(folder)}}}" if folder else "none",
        peers=_peers(peers, example),
    )


def _peers(peers: Mapping[str, str], example: str) -> str:
    if not peers:
        return f"# peers:\n#   site2: {example}.2:8079"
    return "\n".join(["peers:", *(f"  {_scalar(name)}: {_scalar(url)}" for name, url in peers.items())])


def _scalar(text: str) -> str:
    """A text as YAML has it: in quotes, unless it can be nothing but itself. JSON is such YAML."""
    if _PLAIN.fullmatch(text) and text.casefold() not in _NOT_TEXT:
        return text
    return json.dumps(text, ensure_ascii=False)
