"""The checks of `cheops check`: everything that an agent can check by itself, in groups.

Each check reports its result; one that fails says what to do and where the documentation explains it. A warning is
about what works but may not be intended.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import structs

from cheops import __version__
from cheops.api.configuration_checks import configuration_checks, type_checks
from cheops.api.disk_usage import usage_check
from cheops.api.health import resource_checks
from cheops.api.models.site import CHECK_GROUPS, Check, Checks, Level
from cheops.api.models.site import make_check as _check
from cheops.api.notifications import notification_checks
from cheops.api.peer_checks import peer_checks
from cheops.api.views.status import blocked_sentence, clock_is_wrong
from cheops.backends.protocol import Finding
from cheops.config.address import address_of_url, is_loopback
from cheops.config.notify import MailConfig, WebhookConfig
from cheops.config.services import ServiceConfig
from cheops.config.site import SiteConfig
from cheops.engine import incarnation
from cheops.engine.admission import FALSE_SNAPSHOT, waiting_for_refused
from cheops.engine.intake import BAD_NAME, BAD_NUMBER, FOREIGN_STAMP, FUTURE_STAMP
from cheops.engine.replica import Replica
from cheops.gateway.server import Gateway
from cheops.gateway.service_tls import listener_files
from cheops.node.damaged_documents import named
from cheops.node.node import Node
from cheops.peers import intake, links
from cheops.peers.common_clock import CommonClock
from cheops.peers.frames import FrameError
from cheops.peers.liveness import SiteState
from cheops.peers.prober import now
from cheops.peers.views import SiteView
from cheops.security.refusals import AGAINST_POLICY, Refused
from cheops.text import listed, printable, shortened

SECURITY_DOCUMENT = "docs/security.md"
_LITTLE_BYTES = 64 * 1024 * 1024  # of free space, below which there is a warning
_CONNECT_S = 2.0
_DAY_S = 86_400.0
_RENEW_S = 14 * _DAY_S
_LATELY_S = 600.0  # for refused requests
_JUST_NOW_S = 120.0  # for refused documents, which a site offers again every few seconds
_MAX_NAMED = 5
_MAX_HELD = 20
_INCARNATION_MS = 7 * 24 * 3_600_000  # for which a new incarnation is shown
_OTHERS = 0o077  # the permissions of group and others


async def checks(node: Node, gateway: Gateway | None = None) -> Checks:
    peers = [view for view in node.mesh.sites(now()) if not view.here and view.state is not SiteState.FORGOTTEN]
    results = [
        *await asyncio.to_thread(lambda: list(configuration_checks(node))),
        *await asyncio.to_thread(lambda: list(_store(node))),
        await usage_check(node),
        *_own_clock(node.mesh.common_clock),
        *(_clock(peer) for peer in peers if peer.clock),
        *(check for peer in peers for check in type_checks(node, peer)),
        *fault_checks(node),
        *await resource_checks(node),
        *incarnation_checks(node),
        *trust_checks(node),
        *await asyncio.to_thread(lambda: list(security_checks(node))),
        *peer_checks(node, peers),
        *await asyncio.gather(*(_front(node, one) for one in node.config.services.values() if one.listener.listen)),
        *(_public_certificate(one) for one in node.config.services.values() if one.listener.tls),
        *await _data_plane(gateway),
        *(_unknown_calls(gateway) if gateway else ()),
        *notification_checks(node),
        *(_of_backend(finding) for finding in await node.backends.doctor()),
        *(_version(peer) for peer in peers if peer.version),
    ]
    results.sort(key=lambda check: CHECK_GROUPS.index(check.group))  # a backend reports in the group where readers look
    return Checks(site=node.name, ok=all(check.ok for check in results), checks=tuple(results))


def _store(node: Node) -> Iterator[Check]:
    trouble = node.pump.trouble
    hint = "free space or fix the disk: the agent then continues automatically" if trouble else ""
    name = f"store is {'not ' if trouble else ''}writable"
    yield _check("store", name, trouble or f"in {node.config.data}", hint)
    disk = os.statvfs(node.config.data)
    free = disk.f_bavail * disk.f_frsize
    hint = (
        "free space before the disk is full: the agent then accepts no more operations" if free < _LITTLE_BYTES else ""
    )
    level = Level.WARNING if hint else Level.OK
    name = f"disk {'is almost full' if hint else 'has free space'}"
    yield _check("store", name, f"{free / 1024**2:,.0f} MiB{' free' if hint else ''}", hint, level)
    excess = node.disk_quota.problem() or ""
    hint = "until then the agent refuses operations from clients" if excess else ""
    name = "no space is left for clients" if excess else "clients are within their quota"
    yield _check("store", name, excess or node.disk_quota.usage(), hint)
    trouble = node.audit.trouble or (f"{node.audit.lost} entries were lost" if node.audit.lost else "")
    hint = "free space or fix the disk: the agent then continues automatically" if trouble else ""
    name = f"audit log is {'not writable' if node.audit.trouble else 'incomplete' if trouble else 'writable'}"
    yield _check("store", name, trouble or str(node.audit.path), hint)
    for resource, ids in sorted(node.store.damaged.items())[:_MAX_HELD]:
        name = f"stored documents of '{printable(shortened(resource))}' are damaged"
        hint = (
            "the disk has changed them: replace it. The agent fetches them from other sites that are up; what no site "
            "has is lost, and the resource cannot be used here"
        )
        yield _check("store", name, named(ids), hint)
    if node.audit.altered:
        hint = "somebody removed or changed lines while the agent was not running: 'cheops audit' shows where"
        yield _check("store", "audit log was altered", node.audit.altered, hint)


def fault_checks(node: Node) -> Iterator[Check]:
    """Bugs of this agent, and proof that a site is in the wrong hands."""
    if node.faults.count:
        hint = "this is a bug in Cheops: report it with the agent's log"
        name = f"{node.faults.count} events failed because of a fault in this agent"
        yield _check("store", name, node.faults.last, hint)
    for one in node.alarms.open(node.mesh.member_of)[:_MAX_HELD]:
        name = f"{printable(one.by)} misbehaves ({one.what}) on '{printable(shortened(one.resource))}'"
        hint = (
            f"if its keys are in the wrong hands: 'cheops site forget {one.by} --force', or new keys with "
            f"'cheops site invite {one.by} --again'. Either ends this alarm"
        )
        yield _check("security", name, one.detail, hint)


def incarnation_checks(node: Node) -> Iterator[Check]:
    """That the store was an old copy, or its stamps were wrong; and what still waits to be issued again."""
    now_ms = time.time() * 1000
    # Of several that were closed at once, one line: the reason is the same.
    for closed in {one.at_ms: one for one in node.pump.site.incarnations.closed}.values():
        if now_ms - closed.at_ms < _INCARNATION_MS:
            name = "this site has begun a new incarnation of its store"
            hint = "'cheops log ID' shows what was issued again; docs/production.md#backup explains it"
            yield _check("store", name, printable(closed.why), hint, Level.WARNING)
    replicas = [replica for replica in node.pump.site.replicas.values() if incarnation.waiting(replica)]
    for replica in replicas[:_MAX_HELD]:
        sites = listed(map(printable, incarnation.unheard(replica)))
        name = f"operations on '{printable(shortened(replica.resource))}' wait to be issued again"
        detail = f"{len(incarnation.waiting(replica))} that this site has acknowledged"
        hint = f"they are as soon as all its sites have answered; not yet: {sites or 'none is missing'}"
        yield _check("store", name, detail, hint)


def _own_clock(clock: CommonClock) -> Iterator[Check]:
    if clock.is_corrected:
        detail = f"{-clock.correction_ms / 1000:+,.0f} s against most sites"
        hint = "set it with NTP; until then this site works with the time of most sites"
        yield _check("clocks", "clock of this site is wrong", detail, hint)


def _clock(peer: SiteView) -> Check:
    offset = peer.clock.offset_ms if peer.clock else 0.0
    hint = "synchronize both clocks with NTP: 'last writer wins' depends on them" if clock_is_wrong(peer) else ""
    name = f"clock of {peer.name} {'differs from' if hint else 'agrees with'} ours"
    detail = f"{offset:+,.0f} ms{'' if peer.is_up else ' when last seen'}"
    return _check("clocks", name, detail, hint)


async def _data_plane(gateway: Gateway | None) -> list[Check]:
    if gateway is None:
        return []
    name, plane = "requests are forwarded", gateway.plane
    if plane is None:
        detail, hint = "by the agent itself", ""
        if why := gateway.without_haproxy:
            detail += f": {why}"
            hint = "fix HAProxy and restart the agent, or set gateway.data_plane to builtin"
        return [_check("services", name, detail, hint)]
    await plane.refresh()
    served = plane.counters.by_haproxy + plane.counters.by_agent
    share = f"{plane.counters.by_haproxy / served:.1%} of {served:,} requests" if served else "no request yet"
    known = f"{len(plane.table):,} flow{'' if len(plane.table) == 1 else 's'}"
    if plane.carrier_cache is not None:
        known += f", {plane.carrier_cache.count:,} carrier values"
    detail = f"by HAProxy (process {plane.haproxy.pid}): {known}; {share} bypassed the agent"
    if plane.trouble:
        hint = f"see {plane.haproxy.folder / 'haproxy.log'}; the agent retries automatically"
        return [_check("services", "HAProxy has a problem", f"{plane.trouble}; requests are forwarded {detail}", hint)]
    return [_check("services", name, detail)]


def _unknown_calls(gateway: Gateway) -> Iterator[Check]:
    """Calls of the application whose scope was not known; the data plane was refreshed just before."""
    record, now_s = gateway.request_log, time.time()
    for service, last_s in sorted(record.last_unknown_call_s.items()):
        if now_s - last_s > _LATELY_S:
            continue
        hint = (
            "have the application pass on the header Scope, or a carrier; see "
            "docs/gateway.md#calls-without-a-known-scope"
        )
        detail = f"{record.unknown_calls[service]:,} since the start, the last {now_s - last_s:,.0f} s ago"
        yield _check("services", f"calls to {service} have no known scope", detail, hint, Level.WARNING)


async def _front(node: Node, service: ServiceConfig) -> Check:
    """Whether the address for clients works from here. Without certificates other sites use it too."""
    url, name = service.listener.advertise, f"gateway listens for {service.name}"
    try:
        await _connected(url)
    except (OSError, TimeoutError) as error:
        hint = f"fix 'services.{service.name}.listen' or 'advertise'"
        name = f"gateway cannot be reached for {service.name}"
        return _check("services", name, f"{url}: {error or 'no response'}", hint)
    others = dict(node.config.service_urls)[service.name]
    return _check(
        "services", name, f"at {service.listener.listen}; other sites {f'use {others}' if others else 'cannot'}"
    )


def _public_certificate(service: ServiceConfig) -> Check:
    """The certificate that clients of a service see, as it is in use."""
    assert service.listener.tls  # noqa: S101 - the caller has looked
    files, key = listener_files(service.listener.tls), f"services.{service.name}.tls"
    left_s, name = files.current().ends_s - time.time(), f"certificate for clients of {service.name}"
    if files.problem:
        hint = f"fix the files of '{key}'; until then the gateway uses those that it read before"
        return _check("services", f"new {name} cannot be used", files.problem, hint)
    if left_s <= 0:
        detail = f"{-left_s / _DAY_S:,.1f} days ago"
        return _check("services", f"{name} has expired", detail, f"replace the files of '{key}'")
    hint = f"replace the files of '{key}' before it ends" if left_s < _RENEW_S else ""
    level = Level.WARNING if hint else Level.OK
    name += " expires soon" if hint else " is valid"
    return _check("services", name, f"for {left_s / _DAY_S:,.0f} more days", hint, level)


async def _connected(url: str) -> None:
    """Raises OSError or TimeoutError if nothing listens there."""
    place = address_of_url(url)
    _reader, writer = await asyncio.wait_for(asyncio.open_connection(place.host, place.port), _CONNECT_S)
    writer.close()


def _of_backend(finding: Finding) -> Check:
    level = Level.WARNING if finding.is_warning else None
    check = _check(finding.group, finding.name, finding.detail, finding.hint, level)
    return structs.replace(check, anchor=finding.anchor or check.anchor)


def _version(peer: SiteView) -> Check:
    hint = f"install the same version at {peer.name} and at this site" if peer.version != __version__ else ""
    level = Level.WARNING if hint else Level.OK
    name = f"{peer.name} runs {'another' if hint else 'the same'} version"
    return _check("versions", name, f"{peer.version} there, {__version__} here", hint, level)


# -- security: certificates, secrets, tokens, refusals; backends add their own ------------------------------


def security_checks(node: Node) -> Iterator[Check]:
    """Reads files, so it must not run in the event loop."""
    now_s = time.time()
    yield from _certificates(node, now_s)
    yield from _files(node)
    yield from _services(node.config)
    yield from _tokens(node)
    yield from _decisions(node)
    yield _refusals(node.refusals.all(), now_s)


def _security_check(
    name: str, detail: str, hint: str = "", *, anchor: str = "hardening", failed: bool = False
) -> Check:
    """Passes without a hint, since there is nothing to do; with one it fails, unless `level` says otherwise."""
    level = Level.OK if not hint else Level.FAILED if failed else Level.WARNING
    return Check(
        group="security",
        name=name,
        level=level,
        ok=level is not Level.FAILED,
        detail=detail,
        hint=hint,
        anchor=f"{SECURITY_DOCUMENT}#{anchor}",
    )


# -- keys and certificates -------------------------------------------------------------------------------


def _certificates(node: Node, now_s: float) -> Iterator[Check]:
    if node.keyring is None:
        hint = "create certificates and set 'security' before a site on another machine joins"
        yield _security_check("sites do not authenticate each other", "security: none", hint, anchor="join")
        return
    yield _security_check("sites authenticate with certificates", f"TLS 1.3, from {node.keyring.folder.path}")
    identity, renew_before_s = node.keyring.identity, node.config.security.renew_before_s
    yield _expiry("this site's certificate", identity.until_s - now_s, renew_before_s, "renew")
    ends = [one.not_valid_after_utc.timestamp() for one in node.keyring.folder.authorities.certificates]
    yield _expiry("the authority's certificate", max(ends) - now_s, renew_before_s, "authority")


def _expiry(name: str, left_s: float, renew_before_s: float, anchor: str) -> Check:
    """The agent renews a certificate `renew_before_s` before it ends. At half of that, renewal must have failed."""
    if left_s <= 0:
        hint = (
            "other sites refuse this one until it has a new certificate. Start a site that has the authority's key; if "
            "that does not help within a minute: 'cheops site rejoin' (docs/certificates-trouble.md)"
        )
        detail = f"{-left_s / _DAY_S:,.1f} days ago"
        return _security_check(f"{name} has expired", detail, hint, anchor=anchor, failed=True)
    days = f"{left_s / _DAY_S:,.0f}"
    if left_s < renew_before_s / 2:
        hint = "it should be renewed by now; the agent's log says why it was not (docs/certificates-trouble.md)"
        return _security_check(f"{name} expires soon", f"in {days} days", hint, anchor=anchor)
    return _security_check(f"{name} is valid", f"for {days} more days", anchor=anchor)


# -- files that hold secrets -----------------------------------------------------------------------------


def _files(node: Node) -> Iterator[Check]:
    wrong = [text for path in secret_files(node.config) if (text := _too_open(path))]
    hint = "chmod 600 FILE, and replace the secret: others may have read it" if wrong else ""
    detail = "; ".join(wrong) or "keys and credentials"
    name = "secrets are not protected" if hint else "only this user can read secrets"
    yield _security_check(name, detail, hint, anchor="files", failed=True)
    databases = [path for path in sorted(node.config.data.glob("*.db")) if _too_open(path)]
    names = listed(path.name for path in databases)
    hint = f"chmod 600 {node.config.data}/*.db: they contain commands and their output" if databases else ""
    name = "other users can read the store" if databases else "only this user can read the store"
    yield _security_check(name, names if databases else str(node.config.data), hint, anchor="files")


def secret_files(config: SiteConfig) -> list[Path]:
    """All files that the configuration names for what they keep secret."""
    security = config.security
    files = [security.ca_key] if security.ca_key else []
    if security.folder:
        files += [security.folder / "site.key", security.folder / "signing.key"]
    for service in config.services.values():
        files += [service.listener.tls.key] if service.listener.tls else []
        files += [service.upstream_tls.client_key] if service.upstream_tls.client_key else []
    providers = (one.replication.auth for one in config.services.values())
    for auth in filter(None, providers):
        files += [auth.file] if auth.file else []
        files += sorted(path for path in auth.folder.glob("*") if path.is_file()) if auth.folder else []
    for target in config.notify:
        channel = target.channel
        if isinstance(channel, WebhookConfig) and channel.secret_file:
            files.append(channel.secret_file)
        elif isinstance(channel, MailConfig) and channel.password_file:
            files.append(channel.password_file)
    return files


def _too_open(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} has mode {mode & 0o777:o}" if mode & _OTHERS else ""


# -- traffic, tokens and refusals -------------------------------------------------------------------------


def _services(config: SiteConfig) -> Iterator[Check]:
    for service in config.services.values():
        if service.url.startswith("http://") and not is_loopback(service.url):
            hint = f"use https:// in 'services.{service.name}.url', or run the service on this machine"
            name = f"traffic to {service.name} is not encrypted"
            yield _security_check(name, f"{service.url} is plain HTTP over a network", hint, anchor="services")


def _tokens(node: Node) -> Iterator[Check]:
    if node.keyring is None:
        return
    tokens = list(node.accounts.tokens)
    eternal = [token.name for token in tokens if token.ends_ms is None]
    shown = listed(map(printable, eternal[:_MAX_NAMED]))
    hint = "limit the damage of a stolen token: 'cheops token create NAME --expires 30d'" if eternal else ""
    count = f"{len(eternal)} token{' never expires' if len(eternal) == 1 else 's never expire'}"
    name, detail = (count, shown) if eternal else ("all tokens expire", str(len(tokens)))
    yield _security_check(name, detail, hint, anchor="tokens")


def _decisions(node: Node) -> Iterator[Check]:
    """Whether a revocation has reached everyone: a site that does not know of it still trusts the stolen one."""
    forgotten = sorted(node.mesh.forgotten - {node.name})
    open_ = [(site, missing) for site in forgotten if (missing := node.mesh.without_decision(site))]
    for site, missing in open_[:_MAX_NAMED]:
        name = f"{printable(site)} is forgotten, but not everywhere"
        hint = (
            "a site that is down gets it when it is back; one that is up within seconds. Until then block the address "
            f"of {printable(site)} in the firewall there"
        )
        yield _security_check(name, f"not confirmed by {listed(map(printable, missing))}", hint, anchor="revocations")
    if forgotten and not open_:
        detail = listed(map(printable, forgotten))
        yield _security_check("all sites have confirmed which sites are forgotten", detail, anchor="revocations")


def _refusals(refused: Iterable[Refused], now_s: float) -> Check:
    all_of_them = list(refused)
    lately: Counter[str] = Counter()
    for one in all_of_them:
        if now_s - one.last_s < _LATELY_S:
            lately[one.reason] += one.times
    if not lately:
        total = sum(one.times for one in all_of_them)
        return _security_check("no requests were refused recently", f"{total} since the start")
    reasons = ", ".join(f"{reason}: {times}" for reason, times in lately.most_common(_MAX_NAMED))
    hint = "'cheops audit' and the metric cheops_refused_total show the source"
    times = lately.total()
    name = f"{times} request{' was' if times == 1 else 's were'} refused in the last {_LATELY_S / 60:.0f} minutes"
    return _security_check(name, reasons, hint, anchor="refusals")


# -- documents of other sites ---------------------------------------------------------------------------

_MISBEHAVES = "its agent misbehaves: find out who runs it"
_HINTS = {
    intake.NOT_SIGNED: "it runs without 'security', or still has documents from before it had a key",
    intake.WRONG_SIGNATURE: "documents were altered or forged: find out who sends them",
    intake.UNKNOWN_KEY: "no reachable site knows its certificate: check that the site itself is reachable",
    FOREIGN_STAMP: _MISBEHAVES,
    BAD_NAME: _MISBEHAVES,
    BAD_NUMBER: _MISBEHAVES,
    links.INVALID: _MISBEHAVES,
    FrameError.reason: _MISBEHAVES,
    intake.FORGOTTEN_ORIGIN: "they were made after the site was forgotten, and can be ignored",
    FALSE_SNAPSHOT: _MISBEHAVES,
    AGAINST_POLICY: "check that 'types.NAME.policy' is the same at all sites; if so, the sender lacks the permission",
}


def trust_checks(node: Node) -> Iterator[Check]:
    if node.verifier is None:
        return
    now_s = time.time()
    lately = [one for one in node.refusals.all() if now_s - one.last_s < _JUST_NOW_S]
    for one in lately:
        if one.reason == FUTURE_STAMP:
            yield _ahead(one)
        elif one.reason in _HINTS:
            yield _refused(one)
    held = [replica for replica in node.pump.site.replicas.values() if waiting_for_refused(replica)]
    for replica in held[:_MAX_HELD]:
        yield _held(replica)


def _ahead(one: Refused) -> Check:
    hint = f"synchronize all clocks with NTP; then 'cheops clock --cure' at {one.who} has them accepted at once"
    return _check("clocks", f"timestamps of {one.who} are in the future", one.detail, hint)


def _refused(one: Refused) -> Check:
    name = f"documents from {one.who or 'others'} were refused"
    detail = f"{one.reason}, {one.times} times: {one.detail}"
    return _check("security", name, detail, _HINTS[one.reason], Level.WARNING)


def _held(replica: Replica) -> Check:
    name = f"an operation on '{printable(shortened(replica.resource))}' waits for a refused one"
    hint = f"'types.{replica.type.name}.policy' must be the same at all sites: compare them"
    return _check("security", name, blocked_sentence(replica), hint)
