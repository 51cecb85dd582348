"""Recovers the scope of a call that the application itself makes, if it does not pass the `Scope` header on.

A *carrier* is a header that the application does pass on, such as X-Request-Id or the trace id of
`traceparent`. When a request goes to a service of this site, the values of its carriers are remembered with
its scope (or with "no scope"); when the application calls out with such a value, the scope is known again.

Nothing is guessed. Each known carrier value has the scopes it was seen with; exactly one scope must be common to all
values of a call, or the call is refused. Memory is bounded, and requests in progress are never evicted.

Some of these values are cached in HAProxy, which is kept up to date through `CarrierObserver`.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from cheops.errors import CheopsError, ClientError
from cheops.gateway.headers import Header, Headers, RequestHead, first, without

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_BAGGAGE_MEMBER = "cheops"
_LONG = 200
_LOOK_AT = 64  # the oldest values that are examined for one that can be evicted

Carrier = tuple[str, str]  # the lower-case name of a carrier, and its value
KnownScope = str | None  # None: the request had no scope


class CarrierObserver(Protocol):
    """Keeps a copy of what carrier values stand for, and must never be wrong about it."""

    def on_begin(self, one: Carrier, scope: KnownScope) -> None:
        """A request with this value begins: from now on the value may stand for this scope, too."""
        ...

    def on_evicted(self, one: Carrier) -> None:
        """The value was evicted, because the table is full."""
        ...

    async def wait_consistent(self, values: Iterable[Carrier]) -> None:
        """Wait until no copy has an outdated meaning of these values. Raises CheopsError."""
        ...


class RecoveredScope(Struct, frozen=True):
    """A call of the application, and the scope that its carriers gave."""

    head: RequestHead
    scope: str  # latin-1 text of the header, as remembered


class AmbiguousScopeError(ClientError):
    """The carriers of this call belong to several requests with different scopes."""

    status = 409
    definite = False


def carriers_in(head: RequestHead, names: Iterable[str]) -> list[Carrier]:
    """The carriers of a request among the headers of these names."""
    carriers = []
    for name in names:
        value = first(head, name)
        if value and (mark := _mark(name.lower(), value)):
            carriers.append((name.lower(), mark))
    return carriers


def _mark(name: str, value: str) -> str | None:
    """The part of a header's value that stays the same when the application passes it on."""
    if name == "traceparent":  # version, trace id, span id, flags: each program sets a span id of its own
        match = TRACEPARENT.fullmatch(value.strip().lower())
        return match[1] if match and set(match[1]) != {"0"} else None
    if name == "baggage":
        members = (member.partition(";")[0].partition("=") for member in value.split(","))
        return next((v.strip() for key, _, v in members if key.strip() == _BAGGAGE_MEMBER), None)
    value = value.strip()
    # A hash of a long value: clients must not decide how much memory a table entry takes.
    return value if len(value) <= _LONG else blake2b(value.encode("latin-1")).hexdigest()


def with_new_carrier(headers: Headers, names: Sequence[str], mark: str) -> Headers:
    """Headers with a new carrier: the first of `names` that the request does not have. `mark` is 32 random
    hexadecimal digits."""
    present = {name.lower() for name, _ in headers}
    for name in names:
        if name.lower() == "baggage":
            given = [value for n, value in headers if n.lower() == "baggage"]
            members = [*given, f"{_BAGGAGE_MEMBER}={mark}"]
            return (*without(headers, "baggage"), (name, ",".join(members)))
        if name.lower() not in present:
            return (*headers, _new_carrier(name, mark))
    return headers


def _new_carrier(name: str, mark: str) -> Header:
    if name.lower() == "traceparent":
        return name, f"00-{mark}-{mark[:16]}-01"
    # OpenStack accepts a request id only in this form.
    is_openstack = name.lower() == "x-openstack-request-id"
    uuid = f"{mark[:8]}-{mark[8:12]}-{mark[12:16]}-{mark[16:20]}-{mark[20:]}"
    return name, f"req-{uuid}" if is_openstack else uuid


class _Use(Struct):
    under_way: int = 0  # requests in progress: while there are any, the value stands for this scope
    until_s: float = 0.0  # and for a while after the last of them, since calls may come late


class _Table:
    """Values and the scopes that they were seen with; bounded."""

    def __init__(self, most: int, on_evicted: Callable[[Carrier], None]) -> None:
        self._most = most
        self._on_evicted = on_evicted
        self._uses: OrderedDict[Carrier, dict[KnownScope, _Use]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def begin(self, key: Carrier, scope: KnownScope, now_s: float) -> bool:
        """False if the table is full of requests in progress."""
        if key not in self._uses and len(self._uses) >= self._most and not self._evict_one():
            return False
        uses = self._uses.setdefault(key, {})
        self._uses.move_to_end(key)
        for old in [one for one, use in uses.items() if not use.under_way and use.until_s < now_s]:
            del uses[old]
        uses.setdefault(scope, _Use()).under_way += 1
        return True

    def end(self, key: Carrier, scope: KnownScope, until_s: float) -> None:
        use = self._uses.get(key, {}).get(scope)
        if use is not None:
            use.under_way -= 1
            use.until_s = until_s

    def scopes(self, key: Carrier, now_s: float) -> set[KnownScope]:
        uses = self._uses.get(key, {})
        return {scope for scope, use in uses.items() if use.under_way or use.until_s >= now_s}

    def is_any_alive(self, now_s: float) -> bool:
        """The newest values are at the end, so this is quick when it is true."""
        return any(
            use.under_way or use.until_s >= now_s for uses in reversed(self._uses.values()) for use in uses.values()
        )

    def until_s(self, key: Carrier, scope: KnownScope, under_way_s: float) -> float:
        """Until when a value stands for a scope at least; `under_way_s` while a request is in progress."""
        use = self._uses[key][scope]
        return under_way_s if use.under_way else use.until_s

    def _evict_one(self) -> bool:
        """Evict the oldest value without a request in progress."""
        for _ in range(_LOOK_AT):
            key = next(iter(self._uses))
            if not any(use.under_way for use in self._uses[key].values()):
                del self._uses[key]
                self._on_evicted(key)
                return True
            self._uses.move_to_end(key)
        return False


class Carriers:
    """All remembered values. Requests without a scope have a table of their own, so that they cannot evict those
    with one."""

    def __init__(self, most: int, for_s: float, clock: Callable[[], float]) -> None:
        self._for_s = for_s
        self._clock = clock
        self._scoped, self._others = _Table(most, self._evicted), _Table(most, lambda _one: None)
        self.observer: CarrierObserver | None = None

    def __len__(self) -> int:
        return len(self._scoped) + len(self._others)

    def begin(self, carriers: Iterable[Carrier], scope: KnownScope) -> "CarrierUse":
        """A request goes to a service of this site; call `CarrierUse.end` when its response is complete."""
        now_s, kept = self._clock(), []
        for one in carriers:
            if self._table(scope).begin(one, scope, now_s):
                kept.append(one)
                if self.observer is not None:
                    self.observer.on_begin(one, scope)
            elif scope is not None:
                self.end(kept, scope)
                raise CheopsError(
                    "too many requests with scopes are in progress; try again later", definite=False, status=503
                )
        return CarrierUse(self, tuple(kept), scope)

    def end(self, carriers: Iterable[Carrier], scope: KnownScope) -> None:
        until_s = self._clock() + self._for_s
        for one in carriers:
            self._table(scope).end(one, scope, until_s)

    def is_unambiguous(self, carriers: Iterable[Carrier], scope: KnownScope) -> bool:
        """Whether one of these values leads back to this scope and to no other."""
        return any(self._scopes(one) <= {scope} for one in carriers)

    @property
    def has_scopes(self) -> bool:
        """Whether any scope is remembered: if not, no call can belong to one."""
        return self._scoped.is_any_alive(self._clock())

    def knows(self, carriers: Iterable[Carrier]) -> bool:
        """Whether a request with one of these values is remembered, with a scope or without."""
        return any(self._scopes(one) for one in carriers)

    def recover(self, carriers: Sequence[Carrier]) -> KnownScope:
        """The scope of a call with these carriers. Raises AmbiguousScopeError."""
        known = [(one, scopes) for one in carriers if (scopes := self._scopes(one))]
        if not known:
            return None
        common = set.intersection(*(scopes for _, scopes in known))
        if len(common) == 1:
            return common.pop()
        names = ", ".join(sorted({name for (name, _), _ in known}))
        raise AmbiguousScopeError(
            f"the scope of this call is not clear: {names} was seen with different scopes at the same time. "
            "Pass the header Scope on, or use a new value for every request"
        )

    def surely_until_s(self, carriers: Sequence[Carrier], scope: str) -> float | None:
        """Until when `recover` gives this scope if no request begins and nothing is evicted; None if it gives another
        one already."""
        try:
            if self.recover(carriers) != scope:
                return None
        except AmbiguousScopeError:
            return None
        under_way_s = self._clock() + self._for_s
        return min(self._scoped.until_s(one, scope, under_way_s) for one in carriers if self._scopes(one))

    def _evicted(self, one: Carrier) -> None:
        if self.observer is not None:
            self.observer.on_evicted(one)

    def _scopes(self, one: Carrier) -> set[KnownScope]:
        now_s = self._clock()
        return self._scoped.scopes(one, now_s) | self._others.scopes(one, now_s)

    def _table(self, scope: KnownScope) -> _Table:
        return self._others if scope is None else self._scoped


class CarrierUse(Struct, frozen=True):
    """The carriers of one request in progress at a service of this site."""

    carriers: Carriers
    values: tuple[Carrier, ...]
    scope: KnownScope

    async def wait_consistent(self) -> None:
        """Wait until the request may be sent: its calls would otherwise be given an outdated scope. Raises
        CheopsError."""
        if self.carriers.observer is not None:
            await self.carriers.observer.wait_consistent(self.values)

    def end(self) -> None:
        self.carriers.end(self.values, self.scope)
