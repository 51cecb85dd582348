"""Rules about requests to a service, as its configuration states them: which requests, and which members are secret.

never: [POST /v3/auth/tokens]             requests that are never replicated
allow: [POST /v2/images, "PUT /v2/images/**"]   requests of other sites that run here
secret: [$.server.adminPass, pin]         members that are never written down
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from cheops.config.values import ValueType
from cheops.text import printable, shortened
from cheops.yaml_file import Value

# PROPFIND, REPORT and SEARCH are WebDAV's; QUERY is a GET with a body.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"})
_METHOD = re.compile(r"[A-Z]{1,32}|\*")
_RULE_PATH = re.compile(r"/[^\s?#%]*")
_SLASHES = re.compile("/{2,}")
_MEMBER = re.compile(r"(-)?(\$(?:\.[A-Za-z_][\w-]*){1,8}|[A-Za-z_][\w.-]{0,99})")


@dataclass(frozen=True, slots=True)
class RequestRule:
    """A method and a pattern of paths: `*` is one part, `**` any number of parts, also none."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def matches(self, method: str, path: str) -> bool:
        """`path` in its canonical spelling. Services may read two slashes as one, and ignore one at the end."""
        if self.method not in ("*", method):
            return False
        return _pattern(self.path).fullmatch(_SLASHES.sub("/", path).rstrip("/")) is not None


_PARTS = {"*": "/[^/]+", "**": "(?:/[^/]+)*"}


@cache
def _pattern(path: str) -> re.Pattern[str]:
    parts = (part for part in path.split("/") if part)
    return re.compile("".join(_PARTS.get(part) or f"/{re.escape(part)}" for part in parts))


def first_match(rules: Iterable[RequestRule], method: str, path: str) -> RequestRule | None:
    return next((rule for rule in rules if rule.matches(method, path)), None)


def _read_rule(value: Value) -> RequestRule:
    text = value.string()
    method, _, path = text.strip().partition(" ")
    path = path.strip()
    shown = printable(shortened(text))
    if not _METHOD.fullmatch(method) or not _RULE_PATH.fullmatch(path):
        raise value.fail(f"expected a method and a path, such as POST /images or PUT /images/**, found '{shown}'")
    if path.split("/").count("**") > 1:
        raise value.fail(f"'{shown}' has more than one **; one stands for any number of parts")
    return RequestRule(method, path)


def _write_rules(rules: tuple[RequestRule, ...]) -> str:
    return f"[{', '.join(map(str, rules))}]"


# A login makes a session or a token at one site, and has a password in it. To repeat it elsewhere helps nobody.
LOGINS = (
    RequestRule("POST", "/**/auth/tokens"),  # keystone, version 3, with or without a path before it
    RequestRule("POST", "/v2.0/tokens"),
    RequestRule("POST", "/**/login"),
    RequestRule("POST", "/**/oauth/token"),
    RequestRule("POST", "/**/oauth2/token"),
)

RULES = ValueType("list of requests", lambda value: tuple(_read_rule(one) for one in value.items()), _write_rules)
NEVER = ValueType(
    "list of requests", lambda value: (*LOGINS, *(_read_rule(one) for one in value.items())), _write_rules
)

# In lower case, without _ and -: so `adminPass`, `admin_pass` and `Admin-Pass` are one name.
SECRET_NAMES = (
    *("password", "passwd", "passphrase", "adminpass", "adminpassword", "userpassword", "rootpassword"),
    *("originalpassword", "oldpassword", "newpassword", "currentpassword"),
    *("privatekey", "clientsecret", "secretkey", "secretaccesskey"),
    *("accesstoken", "refreshtoken", "apikey", "xamzsignature"),
)


@dataclass(frozen=True, slots=True)
class SecretMembers:
    """Members of bodies, forms and queries that are never written down: by name, or by path from the root."""

    names: frozenset[str] = frozenset(SECRET_NAMES)
    paths: frozenset[tuple[str, ...]] = frozenset()

    def includes(self, place: tuple[str, ...]) -> bool:
        """Whether the member at a place is secret; `place` has the names from the root, without lists."""
        if not place:
            return False
        return _plain(place[-1]) in self.names or (bool(self.paths) and tuple(map(_plain, place)) in self.paths)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _read_secrets(value: Value) -> SecretMembers:
    names, paths = set(SECRET_NAMES), set[tuple[str, ...]]()
    for item in value.items():
        text = item.string()
        found = _MEMBER.fullmatch(text)
        if not found or (found[1] and text.startswith("-$")):
            shown = printable(shortened(text))
            raise item.fail(
                f"expected a member, such as $.server.adminPass or pin, or a well-known name that is not secret "
                f"here, such as -password; found '{shown}'"
            )
        if found[1]:
            names.discard(_plain(found[2]))
        elif found[2].startswith("$"):
            paths.add(tuple(map(_plain, found[2].split(".")[1:])))
        else:
            names.add(_plain(found[2]))
    return SecretMembers(frozenset(names), frozenset(paths))


SECRETS = ValueType("list of members", _read_secrets)
