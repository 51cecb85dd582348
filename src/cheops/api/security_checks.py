"""The checks of `cheops check` about security: certificates, secrets, tokens, refusals. Backends add their own."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from cheops.api.models import Check, Level
from cheops.api.views.status import blocked_sentence
from cheops.config.address import is_loopback
from cheops.config.notify import MailConfig, WebhookConfig
from cheops.config.site import SiteConfig
from cheops.engine.admission import waiting_for_refused
from cheops.engine.replica import Replica
from cheops.node.node import Node
from cheops.peers import intake
from cheops.security.refusals import AGAINST_POLICY, Refused
from cheops.text import listed, printable, shortened

DOCUMENT = "docs/security.md"
_GROUP = "security"
_DAY_S = 86_400.0
_LATELY_S = 600.0
_MOST_NAMED = 5
_OTHERS = 0o077  # what a key's group and everybody else may do


def security_checks(node: Node) -> Iterator[Check]:
    """Some of it looks at files: not for the event loop."""
    now_s = time.time()
    yield from _certificates(node, now_s)
    yield from _files(node)
    yield from _services(node.config)
    yield from _tokens(node)
    yield _refusals(node.refusals.all(), now_s)


def _check(name: str, detail: str, hint: str = "", *, anchor: str = "hardening", failed: bool = False) -> Check:
    """Right where there is nothing to do about it."""
    level = Level.OK if not hint else Level.FAILED if failed else Level.WARNING
    return Check(
        group=_GROUP,
        name=name,
        level=level,
        ok=level is not Level.FAILED,
        detail=detail,
        hint=hint,
        anchor=f"{DOCUMENT}#{anchor}",
    )


# -- keys and certificates -------------------------------------------------------------------------------


def _certificates(node: Node, now_s: float) -> Iterator[Check]:
    if node.keyring is None:
        hint = "create certificates and set 'security' before a site on another machine joins"
        yield _check("sites authenticate with certificates", "security: none", hint, anchor="join")
        return
    yield _check("sites authenticate with certificates", f"TLS 1.3, from {node.keyring.folder.path}")
    identity, renew_before_s = node.keyring.identity, node.config.security.renew_before_s
    yield _expiry("this site's certificate is valid", identity.until_s - now_s, renew_before_s, "renew")
    ends = [one.not_valid_after_utc.timestamp() for one in node.keyring.folder.authorities.certificates]
    yield _expiry("the authority's certificate is valid", max(ends) - now_s, renew_before_s, "authority")


def _expiry(name: str, left_s: float, renew_before_s: float, anchor: str) -> Check:
    """A certificate is renewed by itself when that is due: half that time later something is wrong."""
    if left_s <= 0:
        hint = "other sites refuse this one until it has a new certificate"
        return _check(name, f"it expired {-left_s / _DAY_S:,.1f} days ago", hint, anchor=anchor, failed=True)
    hint = "it should be renewed by now; see the agent's log" if left_s < renew_before_s / 2 else ""
    return _check(name, f"for {left_s / _DAY_S:,.0f} more days", hint, anchor=anchor)


# -- files that hold secrets -----------------------------------------------------------------------------


def _files(node: Node) -> Iterator[Check]:
    wrong = [text for path in secret_files(node.config) if (text := _too_open(path))]
    hint = "chmod 600 FILE, and replace the secret: others may have read it" if wrong else ""
    detail = "; ".join(wrong) or "keys and credentials"
    yield _check("only this user can read secrets", detail, hint, anchor="files", failed=True)
    databases = [path for path in sorted(node.config.data.glob("*.db")) if _too_open(path)]
    names = listed(path.name for path in databases)
    hint = f"chmod 600 {node.config.data}/*.db: they contain commands and their output" if databases else ""
    detail = f"readable by others: {names}" if databases else str(node.config.data)
    yield _check("only this user can read the store", detail, hint, anchor="files")


def secret_files(config: SiteConfig) -> list[Path]:
    """All files that the configuration names for what they keep secret."""
    security = config.security
    files = [security.ca_key] if security.ca_key else []
    if security.folder:
        files += [security.folder / "site.key", security.folder / "signing.key"]
    providers = (one.replication.auth for one in config.services.values())
    files += [auth.file for auth in providers if auth and auth.file]
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


# -- who comes in, and what is on the wire ---------------------------------------------------------------


def _services(config: SiteConfig) -> Iterator[Check]:
    for service in config.services.values():
        if service.url.startswith("http://") and not is_loopback(service.url):
            hint = f"use https:// in 'services.{service.name}.url', or run the service on this machine"
            name = f"traffic to {service.name} is encrypted"
            yield _check(name, f"{service.url} is plain HTTP over a network", hint, anchor="services")


def _tokens(node: Node) -> Iterator[Check]:
    if node.keyring is None:
        return
    tokens = list(node.accounts.tokens)
    eternal = [token.name for token in tokens if token.ends_ms is None]
    shown = listed(map(printable, eternal[:_MOST_NAMED]))
    hint = "limit the damage of a stolen token: 'cheops token create NAME --expires 30d'" if eternal else ""
    detail = f"{len(eternal)} never expire: {shown}" if eternal else f"all {len(tokens)}"
    yield _check("tokens expire", detail, hint, anchor="tokens")


def _refusals(refused: Iterable[Refused], now_s: float) -> Check:
    name, all_of_them = "no requests were refused recently", list(refused)
    lately: Counter[str] = Counter()
    for one in all_of_them:
        if now_s - one.last_s < _LATELY_S:
            lately[one.reason] += one.times
    if not lately:
        return _check(name, f"{sum(one.times for one in all_of_them)} since the start")
    reasons = ", ".join(f"{reason}: {times}" for reason, times in lately.most_common(_MOST_NAMED))
    hint = "'cheops audit' and the metric cheops_refused_total show the source"
    return _check(name, f"refused in the last minutes: {reasons}", hint, anchor="refusals")


_DOCUMENT = "docs/troubleshooting.md"
_JUST_NOW_S = 120.0  # a site that has such documents offers them again every few seconds
_MAX_HELD = 20
_HINTS = {
    intake.NOT_SIGNED: "it runs without 'security', or still has documents from before it had a key",
    intake.WRONG_SIGNATURE: "documents were altered or forged: find out who sends them",
    intake.UNKNOWN_KEY: "no reachable site knows its certificate: check that the site itself is reachable",
    intake.FOREIGN_STAMP: "its agent misbehaves: find out who runs it",
    intake.FORGOTTEN_ORIGIN: "they were made after the site was forgotten, and can be ignored",
    AGAINST_POLICY: "check that 'types.NAME.policy' is the same at all sites; if so, the sender lacks the permission",
}


def trust_checks(node: Node) -> Iterator[Check]:
    if node.verifier is None:
        return
    now_s = time.time()
    lately = [one for one in node.refusals.all() if now_s - one.last_s < _JUST_NOW_S]
    for one in lately:
        if one.reason == intake.FUTURE_STAMP:
            yield _ahead(one)
        elif one.reason in _HINTS:
            yield _refused(one)
    held = [replica for replica in node.pump.site.replicas.values() if waiting_for_refused(replica)]
    for replica in held[:_MAX_HELD]:
        yield _held(replica)


def _ahead(one: Refused) -> Check:
    hint = "synchronize all clocks with NTP; the operations are accepted once our clock has caught up"
    return _trust_check("clocks", f"timestamps of {one.who} are not in the future", Level.FAILED, one.detail, hint)


def _refused(one: Refused) -> Check:
    name = f"documents from {one.who or 'others'} are accepted"
    detail = f"{one.reason}, {one.times} times: {one.detail}"
    return _trust_check("security", name, Level.WARNING, detail, _HINTS[one.reason])


def _held(replica: Replica) -> Check:
    name = f"no operation on '{printable(shortened(replica.resource))}' waits for a refused one"
    hint = f"'types.{replica.type.name}.policy' must be the same at all sites: compare them"
    return _trust_check("security", name, Level.FAILED, blocked_sentence(replica), hint)


def _trust_check(group: str, name: str, level: Level, detail: str, hint: str) -> Check:
    ok = level is not Level.FAILED
    return Check(group=group, name=name, level=level, ok=ok, detail=detail, hint=hint, anchor=f"{_DOCUMENT}#{group}")
