"""The configuration file that `cheops init` writes: valid, with comments for the operator who edits it.

Comments and defaults come from the declarations of the settings, so they cannot differ from docs/configuration.md.
"""

import json
import re
from collections.abc import Mapping

from cheops.config.address import Address
from cheops.config.settings import settings_of, walk
from cheops.config.site import SiteConfig

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NOT_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")

_TEXT = """\
# The configuration of one site. `cheops config check` validates it and shows what it configures.
# All settings, with their defaults and units: docs/configuration.md

# {doc[site]}
site: {site}

# {doc[listen]}
listen: {listen}
# {doc[advertise]}
{advertise}

# {doc[security]}
# Any other setup needs certificates: docs/security.md.
security: {security}

# {doc[data]} Relative paths start at the directory of this file.
data: ./{default[data]}

# {doc[peers]}
# All sites may use the same list: a site ignores its own name in it.
{peers}

# {doc[services]} Clients connect to `listen`; the header Scope says where a request runs.
# The application itself connects to `outbound` for its calls to other services.
# services:
#   image:
#     url: http://127.0.0.1:9292
#     listen: 127.0.0.1:9392
#     outbound: 127.0.0.1:9492
#     auth: {{file: image.headers}}   # the credentials with which this site runs changes accepted at other sites

# {doc[types]} A type says how concurrent changes combine (docs/matrix.md), and which commands may run.
types:
  default:
    matrix:
      - {{before: set, after: set, result: take-one}}
    # {doc[types.NAME.allow]} By default nothing is allowed.
    # Patterns match word by word: `*` is one word, and `...` at the end any further words.
    allow: []
    # Patterns of commands that 'cheops show --command' may run. The type's `read` is always allowed.
    show: []
    timeout: {default[types.NAME.timeout]}

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

# {doc[heartbeat]}
heartbeat: {{every: {default[heartbeat.every]}, down_after: {default[heartbeat.down_after]}}}
"""


def site_file(
    site: str, listen: Address, advertise: str | None, peers: Mapping[str, str], folder: str | None = None
) -> str:
    """The text of a configuration file for this site. Without a folder of certificates it is plain HTTP."""
    example = "https://10.0.0" if folder else "http://127.0.0"
    declared = dict(walk(settings_of(SiteConfig)))
    return _TEXT.format(
        doc={path: _first_sentence(one.doc) for path, one in declared.items()},
        default={path: one.default_text.strip("`") for path, one in declared.items()},
        site=_scalar(site),
        listen=_scalar(str(listen)),
        advertise=f"advertise: {_scalar(advertise)}" if advertise else f"# advertise: {example}.1:8079",
        security=f"{{folder: {_scalar(folder)}}}" if folder else "none",
        peers=_peers(peers, example),
    )


def _first_sentence(doc: str) -> str:
    """The rest is for docs/configuration.md, and so are its links."""
    return _LINK.sub(r"\1", doc.split(". ", maxsplit=1)[0].rstrip(".")) + "."


def _peers(peers: Mapping[str, str], example: str) -> str:
    if not peers:
        return f"# peers:\n#   site2: {example}.2:8079"
    return "\n".join(["peers:", *(f"  {_scalar(name)}: {_scalar(url)}" for name, url in peers.items())])


def _scalar(text: str) -> str:
    """A text in YAML: quoted, unless YAML could read it as nothing but this text. JSON's quotes are valid YAML."""
    if _PLAIN.fullmatch(text) and text.casefold() not in _NOT_TEXT:
        return text
    return json.dumps(text, ensure_ascii=False)
