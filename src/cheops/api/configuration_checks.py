"""The checks of `cheops check` about the configuration: of this site's file, and of types that sites share."""

from collections.abc import Iterator
from dataclasses import fields

from cheops.api.models.site import Check, Level, make_check
from cheops.api.views.status import type_differences
from cheops.config.site import SiteConfig, read_site
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.views import SiteView
from cheops.text import in_words

_GROUP = "configuration"
_KEYS = {"name": "site"}  # settings whose key in the file is another word


def configuration_checks(node: Node) -> Iterator[Check]:
    """Reads files, so it must not run in the event loop."""
    path = node.config.source
    try:
        changed = changed_settings(node.config, read_site(path))
    except CheopsError as error:
        yield make_check(_GROUP, f"{path} cannot be read", str(error), "fix it before the next start")
        return
    if not changed:
        yield make_check(_GROUP, f"{path} is in force", "unchanged since the agent started")
    else:
        # A file may name others: lists of peers, matrices. Which of them has changed is not known.
        detail = f"{in_words(changed)}, in this file or in one that it names; the agent uses the earlier version"
        name = f"configuration in {path} has changed since the agent started"
        yield make_check(_GROUP, name, detail, "restart the agent to apply it", Level.WARNING)
    for problem in node.config.problems():
        hint = "until then commands of this type fail at this site"
        yield make_check(_GROUP, "commands cannot run", problem, hint)
    for warning in node.config.warnings:
        hint = "run 'cheops config check' for details"
        yield make_check(_GROUP, "configuration has a warning", warning, hint, Level.WARNING)


def changed_settings(before: SiteConfig, after: SiteConfig) -> list[str]:
    """The keys of the file whose settings differ. Warnings follow from the settings."""
    names = (one.name for one in fields(SiteConfig) if one.name not in {"source", "warnings"})
    return [_KEYS.get(name, name) for name in names if getattr(before, name) != getattr(after, name)]


def type_checks(node: Node, peer: SiteView) -> Iterator[Check]:
    """Types that differ make the sites merge differently, or let the first operation fail at one of them."""
    theirs = dict(peer.types)
    shared = sum(name in theirs for name, _ in node.mesh.own.types)
    if found := type_differences(node.mesh, peer.types):
        hint = f"make them equal in the configuration files of {node.name} and {peer.name}"
        name = f"{peer.name} configures some types differently"
        yield make_check(_GROUP, name, in_words([str(one) for one in found]), hint)
    elif shared:
        yield make_check(_GROUP, f"{peer.name} configures shared types equally", f"{shared} compared")
