"""What a client's request means for replication: its target, its preferences and conditions, and what is refused."""

import re
from email.utils import parsedate_to_datetime
from enum import StrEnum
from urllib.parse import parse_qsl

from msgspec import Struct

from cheops.backends.http.copies import Copy, Index
from cheops.backends.http.ids import is_meta_id, meta_id_of
from cheops.backends.http.interpretation import Meaning
from cheops.backends.http.paths import ID, below, canonical, collection_of, folded, prefixes, split_target, trimmed
from cheops.backends.http.payload import plain_name
from cheops.config.request_rules import SAFE_METHODS
from cheops.config.service_rules import ServiceRules
from cheops.config.services import EXISTS
from cheops.errors import ClientError
from cheops.gateway.headers import Headers, RequestHead, every, first
from cheops.text import printable, shortened

_CONDITIONS = ("If-Match", "If-None-Match", "If-Unmodified-Since")


def is_conditional(head: RequestHead) -> bool:
    return any(first(head, name) is not None for name in _CONDITIONS)


def check_conditions(head: RequestHead, status: int, headers: Headers) -> None:
    """Raises ClientError. `status` and `headers` are those of the replica here; 404 if there is none."""
    replica = RequestHead("GET", "", headers)
    exists, tag = 200 <= status < 300, first(replica, "ETag")
    if wanted := every(head, "If-Match"):
        if not exists or not _any_matches(wanted, tag, weakly=False):
            raise ClientError(f"If-Match: the replica here {_describe(exists=exists, tag=tag)}", status=412)
    elif (since := first(head, "If-Unmodified-Since")) and _is_later(first(replica, "Last-Modified"), since):
        raise ClientError("If-Unmodified-Since: the replica here is newer, or does not say how old it is", status=412)
    if exists and _any_matches(every(head, "If-None-Match"), tag, weakly=True):
        raise ClientError(f"If-None-Match: the replica here {_describe(exists=exists, tag=tag)}", status=412)


def _describe(*, exists: bool, tag: str | None) -> str:
    if not exists:
        return "does not exist"
    return f"has the tag {tag}" if tag else "exists, and has no tag"


def _any_matches(wanted: list[str], tag: str | None, *, weakly: bool) -> bool:
    tags = [one.strip() for value in wanted for one in value.split(",")]
    if "*" in tags:
        return True
    if tag is None or (not weakly and tag.startswith("W/")):
        return False
    if weakly:
        return tag.removeprefix("W/") in {one.removeprefix("W/") for one in tags}
    return tag in tags


def _is_later(modified: str | None, since: str) -> bool:
    try:
        return modified is None or parsedate_to_datetime(modified) > parsedate_to_datetime(since)
    except (ValueError, TypeError):
        return True  # what cannot be compared is not known to be unchanged


_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)
# In these, what is ASCII stands there as it is.
_READABLE = re.compile(r"utf-?8|(?:us-)?ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d", re.IGNORECASE)


def refuse_other_type(head: RequestHead) -> None:
    """Raises ClientError for a change with two types: services differ in which one counts."""
    if len(every(head, "Content-Type")) > 1:
        raise ClientError("a replicated request has one Content-Type", status=400)


def refuse_encoded(head: RequestHead) -> None:
    """Raises ClientError for a JSON body or a form that cannot be looked into."""
    if any(one.strip().lower() != "identity" for one in every(head, "Content-Encoding")):
        raise ClientError(
            "a replicated request must not be compressed: ids and secrets in it could not be found", status=415
        )
    charset = _CHARSET.search(first(head, "Content-Type") or "")
    if charset and not _READABLE.fullmatch(charset[1]):
        raise ClientError(
            f"a replicated request is in UTF-8, not in '{printable(shortened(charset[1]))}': ids and secrets in it "
            "could not be found",
            status=415,
        )


DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 3600.0
MAX_KEY_CHARACTERS = 255
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?:$|[,;])", re.IGNORECASE)
_ASYNC = re.compile(r"(?:^|[,;])\s*respond-async\s*(?:$|[,;])", re.IGNORECASE)


class Wait(StrEnum):
    """For how many sites a response waits."""

    FIRST = "first"
    QUORUM = "quorum"
    ALL = "all"

    def needed(self, sites: int) -> int:
        return {Wait.FIRST: 1, Wait.QUORUM: sites // 2 + 1, Wait.ALL: sites}[self]


class Preferences(Struct, frozen=True):
    """What the headers of a request say about its execution and its response."""

    wait: Wait = Wait.FIRST
    wait_s: float = DEFAULT_WAIT_S
    exists: str = ""
    key: str = ""


def preferences_of(head: RequestHead) -> Preferences:
    """Raises ClientError."""
    return Preferences(
        Wait(_one_of(head, "Cheops-Wait", tuple(Wait)) or Wait.FIRST),
        _wait_s(", ".join(every(head, "Prefer"))),
        _one_of(head, "Cheops-Exists", EXISTS),
        _key(first(head, "Idempotency-Key") or ""),
    )


def _one_of(head: RequestHead, name: str, known: tuple[str, ...]) -> str:
    value = (first(head, name) or "").strip().lower()
    if value and value not in known:
        shown = printable(shortened(value))
        raise ClientError(f"{name} is one of {', '.join(known)}, not '{shown}'")
    return value


def _wait_s(prefer: str) -> float:
    if found := _WAIT.search(prefer):
        return min(float(found[1]), MAX_WAIT_S)
    return 0.0 if _ASYNC.search(prefer) else DEFAULT_WAIT_S


def _key(key: str) -> str:
    if len(key) > MAX_KEY_CHARACTERS:
        raise ClientError(f"an Idempotency-Key has at most {MAX_KEY_CHARACTERS} characters")
    return key


_SLASHES = re.compile("/{2,}")
_METHOD_OVERRIDES = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
_PATH_OVERRIDES = frozenset(("x-original-url", "x-rewrite-url"))
_METHOD_MEMBER = "_method"  # of a query


def refuse_override(index: Index, service: str, rules: ServiceRules, head: RequestHead, *, has_scope: bool) -> None:
    """Raises ClientError for a request that some services take for another one than its method and path say, if one of
    the two may be about something replicated. Proxies add such headers, too, but then they say the same."""
    path, query = split_target(head.target)

    def may_concern(place: str) -> bool:
        return has_scope or _has_replicants(index, service, place) or rules.know_path(canonical(place))

    asked = [value for name, value in head.headers if plain_name(name) in _METHOD_OVERRIDES]
    asked += [value for name, value in parse_qsl(query, keep_blank_values=True) if name == _METHOD_MEMBER]
    for method in (one.strip().upper() for one in asked if may_concern(path)):
        if method not in ("", head.method) and not {method, head.method} <= SAFE_METHODS:
            raise _other_request(head, method)
    if head.method in SAFE_METHODS:
        return
    others = [value.strip() for name, value in head.headers if plain_name(name) in _PATH_OVERRIDES]
    for other in filter(None, others):
        place = split_target(other)[0]
        is_other = trimmed(canonical(place)) != trimmed(canonical(path))
        if is_other and (may_concern(path) or may_concern(place)):
            raise _other_request(head, other)


def _other_request(head: RequestHead, other: str) -> ClientError:
    return ClientError(
        f"a header or the query of this {head.method} asks for '{printable(shortened(other))}'. Some services would do "
        "that instead, so it is not done where something is replicated: send the request that is meant",
        status=422,
    )


class Target(Struct, frozen=True):
    """A replicant, and what of it a request is about. Paths have meta-ids."""

    meta_id: str
    path: str  # of the request
    item: str  # of the replicant, as an operation has it: with `{id}`, or as the client named it
    sub_path: str = ""
    is_named: bool = False
    within: str = ""  # of what is to be created: the replicated collection that it is in
    meaning: Meaning | None = None  # by a rule
    session: str = ""  # it completes a session of this name


def named_target(service: str, head: RequestHead) -> Target:
    """The target of a path that a client chose."""
    sent = canonical(split_target(head.target)[0])
    path = trimmed(sent)
    return Target(meta_id_of("path", service, path), sent, path, is_named=True)


def target_of(index: Index, service: str, path: str) -> Target | None:
    """The replicant of a path: by a meta-id in it, by the local path of a copy here, or by a name that clients chose.
    Services may read two slashes as one, but in a name that clients chose they may have a meaning."""
    found = _find_target(index, service, canonical(path))
    if found is None and "//" in path:
        found = _find_target(index, service, _SLASHES.sub("/", canonical(path)))
        return None if found is None or found.is_named else found
    return found


def _find_target(index: Index, service: str, path: str) -> Target | None:
    sent, path = path, trimmed(path)
    slash = "/" if path not in (sent, "/") else ""  # by which some services know collections
    public = index.path_with_meta_ids(service, path)
    found = index.at(service, path)
    if found is not None and found.is_named:
        return Target(found.meta_id, path + slash, found.item, below(path, found.item), is_named=True)
    unknown = None
    for prefix in prefixes(public):
        meta_id = prefix.rpartition("/")[2].lower()
        if not is_meta_id(meta_id):
            continue
        copy = index.copies.get(meta_id)
        item = f"{collection_of(prefix)}/{ID}"
        target = Target(meta_id, public + slash, item, below(public, prefix))
        if copy is None:
            unknown = unknown or target
        elif _is_at(copy, service, prefix):
            return target
    return unknown


def _is_at(copy: Copy, service: str, path: str) -> bool:
    """Whether a path is that of a copy, rather than one of something that it is named in."""
    return copy.service == service and copy.path.lower() == path.lower()


def refuse_other_spelling(index: Index, service: str, rules: ServiceRules, head: RequestHead) -> None:
    """Raises ClientError for a change of a path that services may take for that of something replicated: some read
    `%2F` and two slashes as one slash, and drop what is behind a `;`. To others these are different names."""
    sent, query = split_target(head.target)
    path, plain = canonical(sent), folded(canonical(sent))
    own = target_of(index, service, path)
    other = index.alike(service, path)
    if plain != trimmed(path):
        found = target_of(index, service, plain)
        if found is not None and (own is None or own.meta_id != found.meta_id):
            other = found.meta_id
        elif not any(rules.matching(head.method, path, query, head.headers)):
            near = rules.matching(head.method, plain, query, head.headers, any_query=True)
            if any(rule.names_by_request for rule, _ in near):
                other = "a rule"
    if other and (own is None or own.meta_id != other):
        raise ClientError(
            f"{printable(shortened(sent))} may be the same as {printable(shortened(plain))} to a service, and "
            "something replicated has that name, or one that is as similar: use that name as it is spelled, or another",
            status=409,
        )


MOVING = frozenset(("MOVE", "COPY"))


def refuse_moving(index: Index, service: str, head: RequestHead, *, has_scope: bool) -> None:
    """Refuse to rename a replicant. That would create one resource and delete another, and no operation is about two
    resources: a site could end up with neither, or with both."""
    if head.method not in MOVING:
        return
    touched = touched_by_move(index, service, head)
    if not has_scope and not touched:
        return
    what = f"{touched[0]} is, or holds, something replicated" if touched else "its scope has '&'"
    raise ClientError(
        f"{head.method} is not done for what is replicated, and {what}. Instead: PUT it under its new "
        "name with the same sites in the scope" + (", then DELETE the old one" if head.method == "MOVE" else ""),
        status=501,
    )


def touched_by_move(index: Index, service: str, head: RequestHead) -> list[str]:
    """Of the two paths of a MOVE or COPY, those that lead to replicants, or contain some."""
    if head.method not in MOVING:
        return []
    source, _ = split_target(head.target)
    destination, _ = split_target(first(head, "Destination") or "")
    return [path for path in (source, destination) if _has_replicants(index, service, path)]


def refuse_whole_collection(index: Index, service: str, head: RequestHead) -> None:
    """Refuse a request that deletes or replaces a path above replicants, such as `DELETE /images`. It is not about any
    of them, so it would go to this site's instance alone, and the replicas at other sites would stay."""
    path, _ = split_target(head.target)
    if head.method == "DELETE":
        is_above = index.has_below(service, path)
    else:
        is_above = head.method in ("PUT", "PATCH") and index.is_collection(service, path)
    if not is_above:
        return
    # It does not name them: nobody has asked the service whether this client may see them.
    raise ClientError(
        f"{path} contains replicated resources, and {head.method} would change them at this site only. First "
        f"{head.method} each of them by its own path: that changes it at all of its sites",
        status=409,
    )


def _has_replicants(index: Index, service: str, path: str) -> bool:
    """Whether a path leads to a replicant, to something below one, or to something above one."""
    return bool(path) and (index.has_below(service, path) or target_of(index, service, path) is not None)
