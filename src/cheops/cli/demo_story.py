"""The guided tour of `cheops demo`, step by step, and the `Stage` that runs it: text, real commands, checks, pauses.

Every claim of the tour is checked before it continues, in every mode, against the applications themselves or an
agent's response. A claim that does not come true ends the demo with an error.
"""

import contextlib
import json
import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cheops.cli.output import print_table, table
from cheops.demo.cloud import HttpResponse, resource_log, send_request
from cheops.demo.sites import NAMES, DemoError, Sites

_TIMEOUT_S = 60.0  # after a cut, sites may take some seconds to see each other up again
_POLL_S = 0.2
_PAUSE_S = 8.0  # to read a step, if no terminal can say that the user has read it


class Stage:
    """The sites, the user's terminal, and whether to pause between the steps."""

    def __init__(self, sites: Sites, context: typer.Context, out: Console, *, pauses: bool) -> None:
        self.sites = sites
        self._root = context.find_root().command
        self._out = out
        self._pauses = pauses and out.is_terminal
        self._act = 0

    def act(self, title: str) -> None:
        self._act += 1
        self._out.print()
        self._out.print(f" {self._act} · {title} ", style="bold reverse" if self._out.is_terminal else "")

    def say(self, text: str) -> None:
        self._out.print()
        self._out.print(text)

    def cut(self) -> None:
        """Cut every site off from every other."""
        self.sites.network.cut()
        self._announce(f"network: {' | '.join(NAMES)}   (cut)", "bold yellow")

    def heal(self) -> None:
        self.sites.network.heal()
        self._announce(f"network: {' — '.join(NAMES)}   (connected)", "bold green")

    def _announce(self, text: str, style: str) -> None:
        self._out.print()
        self._out.print(text, style=style)

    def run(self, site: str, *argv: str) -> None:
        """Run a command at a site. Raises DemoError if it fails."""
        self._out.print()
        line = f"cheops {shlex.join(argv)}"
        shown = line
        if len(line) + len(site) > self._out.width:
            shown = line.replace(" --type ", " \\\n    --type ")  # can still be copied as one command
        self._out.print(Text.assemble((f"{site}$ ", "bold cyan"), (shown, "green")), soft_wrap=True)
        sys.stdout.flush()
        with _with_agent(self.sites.urls[site]):
            code = self._root.main(args=list(argv), prog_name="cheops", standalone_mode=False)
        sys.stdout.flush()
        if code:
            raise DemoError(f"'{line}' at {site} failed with exit code {code}")

    def curl(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        service: str,
        path: str,
        *,
        method: str = "",
        data: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request to a service through the gateway of a site, and print it as a curl command."""
        url = self.sites.cloud.url(site, service)
        words = [word for name, value in (headers or {}).items() for word in ("-H", f"{name}: {value}")]
        words += ["-X", method] if method else []
        words += ["-d", data] if data is not None else []
        line = shlex.join(["curl", f"{url}{path}", *words]).replace(" -d ", " \\\n    -d ")
        self._out.print()
        self._out.print(Text.assemble((f"{site}$ ", "bold cyan"), (line, "green")), soft_wrap=True)
        method = method or ("GET" if data is None else "POST")
        kind = {} if data is None else {"Content-Type": "application/x-www-form-urlencoded"}
        response = send_request(url, method, path, kind | dict(headers or {}), data)
        self._out.print(Text(response.body.decode().rstrip() or f"({response.status})"), soft_wrap=True)
        if response.status >= 400:
            raise DemoError(f"'{line}' at {site} failed with status {response.status}")
        return response

    def exec(self, site: str, id_: str, type_: str, command: str, *more: str) -> None:
        """Submit an operation on a resource at a site."""
        self.run(site, "exec", "--id", id_, *more, "--type", type_, "--command", command)

    def expect_state(self, what: str, *command: str, at: tuple[str, ...], expected: tuple[str, ...]) -> None:
        """Wait until the application itself, at each of these sites, prints what is expected."""
        states: list[str] = []

        def holds() -> bool:
            states[:] = [self.sites.state(site, *command) for site in at]
            return tuple(states) == expected

        self.expect(what, holds, lambda: ", ".join(map(repr, states)))

    def expect(self, what: str, holds: Callable[[], bool], actual: Callable[[], str]) -> None:
        """Wait until a condition holds. `what` is printed then; `actual` describes the state if it never does."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise DemoError(f"the demo failed: expected {what}, but found {actual()}")
            time.sleep(_POLL_S)
        self._out.print(Text.assemble(("✓ ", "bold green"), what))

    def compare(self, *columns: tuple[str, tuple[str, ...]]) -> None:
        """Print the state of the applications of all sites, side by side."""
        rows = table("SITE", *(title for title, _ in columns))
        for site in NAMES:
            rows.add_row(site, *(self.sites.state(site, *command) for _, command in columns))
        self._out.print()
        if self._out.is_terminal:
            self._out.print(Padding(rows, (0, 0, 0, 2)))
        else:
            print_table(self._out, rows)
        self._out.print()

    def pause(self) -> None:
        """Wait for Enter, or for some seconds; only on a terminal."""
        if not self._pauses:
            return
        hint = "Press Enter to continue" if sys.stdin.isatty() else "…"
        self._out.print(Text(f"  {hint}", style="dim"), end="")
        sys.stdout.flush()
        if sys.stdin.isatty() and select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            sys.stdin.readline()
            self._out.file.write("\x1b[1A")  # Enter moved to the next line
        elif not sys.stdin.isatty():
            time.sleep(_PAUSE_S)
        self._out.file.write("\r\x1b[2K")


@contextlib.contextmanager
def _with_agent(url: str) -> Iterator[None]:
    """Set CHEOPS_URL to this agent for a while."""
    before = os.environ.get("CHEOPS_URL")
    os.environ["CHEOPS_URL"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["CHEOPS_URL"]
        else:
            os.environ["CHEOPS_URL"] = before


_JSON = {"Content-Type": "application/json"}
_ALL_SITES = " & ".join(NAMES)
_FILES = {site: f"the debian of {site}" for site in NAMES}


def share(stage: Stage) -> None:
    stage.act("HTTP services, unchanged")
    stage.say(
        "minicloud has two HTTP services: image, and compute, which makes servers from images. Each site runs "
        "its own instances, which know nothing of Cheops; the site's gateway is in front of them. A request "
        "without a scope stays at its site:"
    )
    images = {site: _new_image(stage, site) for site in NAMES[:2]}
    _expect_images(stage, "site1 and site2 each have a debian of their own", "debian", at=NAMES[:2])
    stage.pause()
    stage.say("A scope says where. A server at site1, from the image at site2, which site1 does not have:")
    scope = {"Scope": "{compute: site1, image: site2}"}
    data = json.dumps({"name": "vm", "image": images["site2"]})
    stage.curl("site1", "compute", "/servers", headers=scope, data=data)
    wanted = sha256(_FILES["site2"].encode()).hexdigest()
    stage.expect(
        "the server is at site1, made from the image of site2",
        lambda: _servers(stage, "site1").get("vm") == wanted,
        lambda: str(_servers(stage, "site1")),
    )


def replicate(stage: Stage) -> None:
    stage.act("One image, replicated at three sites")
    stage.say("With & the image is created at every site. Clients see one image, with one id:")
    headers = {"Scope": f"{{image: {_ALL_SITES}}}", "Cheops-Wait": "all", **_JSON}
    response = stage.curl("site1", "image", "/images", headers=headers, data='{"name": "fedora"}')
    meta_id: str = response.json["id"]
    _expect_images(stage, "every site has fedora, with a local id that clients do not see", "fedora", at=NAMES)
    stage.pause()
    stage.cut()
    stage.say("Each site continues with its own replica, and accepts changes:")
    path = f"/images/{meta_id}"
    stage.curl("site1", "image", path, method="PATCH", headers=_JSON, data='{"version": 42}')
    stage.curl("site2", "image", path, method="PATCH", headers=_JSON, data='{"os": "linux"}')
    stage.say("With ; a request falls back to another site; around() selects the nearest that works:")
    for scope in ("{image: site1 ; site3}", "{image: around(site1, 10s)}"):
        response = stage.curl("site3", "image", path, headers={"Scope": scope})
        _expect_site(stage, response, "site3")
    stage.pause()
    stage.heal()
    stage.run("site1", "wait", meta_id, "--for=converged")
    stage.expect(
        "both changes are at every site",
        lambda: all(_versions(stage, site) == (42, "linux") for site in NAMES),
        lambda: str([_versions(stage, site) for site in NAMES]),
    )
    response = stage.curl("site3", "image", path, headers={"Scope": "{image: site1 ; site3}"})
    _expect_site(stage, response, "site1")
    stage.run("site2", "get", "replicants")


def _new_image(stage: Stage, site: str) -> str:
    id_: str = stage.curl(site, "image", "/images", data='{"name": "debian"}').json["id"]
    stage.curl(site, "image", f"/images/{id_}/file", method="PUT", data=_FILES[site])
    return id_


# -- checks against the services themselves ----------------------------------------------------------------


def _images(stage: Stage, site: str) -> dict[str, dict[str, Any]]:
    images = stage.sites.cloud.own(site, "image", "/images").json["images"]
    return {image["name"]: image for image in images}


def _servers(stage: Stage, site: str) -> dict[str, str]:
    """The name of each server of a site, and the checksum of the image that it was made from."""
    servers = stage.sites.cloud.own(site, "compute", "/servers").json["servers"]
    return {server["name"]: server["image_sha256"] for server in servers}


def _versions(stage: Stage, site: str) -> tuple[Any, Any]:
    image = _images(stage, site)["fedora"]
    return image.get("version"), image.get("os")


def _expect_images(stage: Stage, what: str, name: str, at: tuple[str, ...]) -> None:
    def ids() -> dict[str, str]:
        return {site: _images(stage, site)[name]["id"] for site in NAMES if name in _images(stage, site)}

    stage.expect(what, lambda: tuple(ids()) == at and len(set(ids().values())) == len(at), lambda: str(ids()))


def _expect_site(stage: Stage, response: HttpResponse, site: str) -> None:
    served = response.headers["Cheops-Site"]
    stage.expect(f"served by {site}", lambda: served == site, lambda: f"served by {served}")


_NOTE = ("note", "show", "shopping")
_COUNTER = ("redis-cli", "get", "counter")
_STOCK = ("stock", "show", "shoes")
_TWO = NAMES[:2]
_EVERYWHERE = ("--sites", " & ".join(NAMES))
_AT_ONCE = ("--wait", "first")


def run_story(stage: Stage) -> None:
    for act in (_together, _cut, _heal, _why, _stock, share, replicate):
        act(stage)
        stage.pause()


def _together(stage: Stage) -> None:
    stage.act("Three sites, one application")
    stage.say("A shopping list, stored as a plain file at each site. site1 creates it; the others add to it.")
    new = (*_EVERYWHERE, "--resource-type", "note")
    stage.exec("site1", "shopping", "set", "note set shopping bread", *new)
    stage.exec("site2", "shopping", "add", "note add shopping milk")
    stage.exec("site3", "shopping", "add", "note add shopping eggs")
    _expect_everywhere(stage, "bread, milk and eggs", *_NOTE, expected="bread\nmilk\neggs")
    if stage.sites.redis_server:
        stage.pause()
        stage.say("A counter, stored in the Redis of each site. The Redis instances do not know of each other.")
        new = (*_EVERYWHERE, "--resource-type", "counter")
        stage.exec("site1", "counter", "set", "redis-cli set counter 0", *new)
        stage.exec("site2", "counter", "inc", "redis-cli incrby counter 7")
        _expect_everywhere(stage, "7", *_COUNTER, expected="7")


def _cut(stage: Stage) -> None:
    stage.act("The network is cut, and every site keeps working")
    stage.cut()
    stage.say("No site reaches another now. Each accepts operations from its users at once:")
    stage.exec("site1", "shopping", "add", "note add shopping butter", *_AT_ONCE)
    stage.exec("site2", "shopping", "set", "note set shopping pizza", *_AT_ONCE)
    stage.exec("site3", "shopping", "add", "note add shopping salt", *_AT_ONCE)
    if stage.sites.redis_server:
        stage.pause()
        stage.exec("site1", "counter", "set", "redis-cli set counter 29", *_AT_ONCE)
        stage.exec("site2", "counter", "inc", "redis-cli incrby counter 13", *_AT_ONCE)
        stage.exec("site3", "counter", "inc", "redis-cli incrby counter -12", *_AT_ONCE)
    stage.say("The sites differ now. The state of the applications themselves:")
    stage.compare(*_columns(stage))
    old = "bread\nmilk\neggs"
    lists = (f"{old}\nbutter", "pizza", f"{old}\nsalt")
    stage.expect_state("three lists, one per site", *_NOTE, at=NAMES, expected=lists)
    if stage.sites.redis_server:
        stage.expect_state("three numbers: 29, 20, -5", *_COUNTER, at=NAMES, expected=("29", "20", "-5"))


def _heal(stage: Stage) -> None:
    stage.act("The network is back")
    stage.heal()
    stage.say("The sites exchange what they missed. Each one merges it by itself, with the same rules.")
    stage.run("site1", "wait", "shopping", "--for=converged")
    if stage.sites.redis_server:
        stage.run("site1", "wait", "counter", "--for=converged")
    stage.compare(*_columns(stage))
    _expect_everywhere(stage, "pizza", *_NOTE, expected="pizza")
    if stage.sites.redis_server:
        _expect_everywhere(stage, "29", *_COUNTER, expected="29")


def _why(stage: Stage) -> None:
    stage.act("Which operation won, and why")
    stage.say("The resource type says how two operations combine: a set replaces adds, even concurrent ones.")
    stage.run("site3", "explain", "shopping")
    _expect_superseded(stage, "shopping", ("site1:2", "site3:2"), by="site2:2")
    if stage.sites.redis_server:
        stage.pause()
        stage.say("The same for the counter, as a log with one lane per site:")
        stage.run("site3", "log", "counter")
        _expect_superseded(stage, "counter", ("site2:2", "site3:1"), by="site1:2")


def _stock(stage: Stage) -> None:
    stage.act("A stock that never falls below zero")
    stage.say("100 pairs of shoes. While the network is cut, site1 sells 50 and site2 sells 51.")
    new = ("--sites", " & ".join(_TWO), "--resource-type", "stock")
    stage.exec("site1", "shoes", "set", "stock set shoes 100", *new)
    stage.cut()
    stage.exec("site1", "shoes", "take", "stock take shoes 50", *_AT_ONCE)
    stage.exec("site2", "shoes", "take", "stock take shoes 51", *_AT_ONCE)
    stage.expect_state("50 left at site1, 49 at site2", *_STOCK, at=_TWO, expected=("50", "49"))
    stage.pause()
    stage.heal()
    stage.say("site1 refuses the 51 as a whole, and site2 the 50. The type then tries them one by one.")
    stage.run("site1", "wait", "shoes", "--for=converged")
    stage.expect_state("0 at both sites", *_STOCK, at=_TWO, expected=("0", "0"))
    stage.say("One pair too many was sold. That cannot be undone, but it is reported:")
    stage.run("site1", "describe", "operation", "shoes", "site2:1")
    _expect_refused(stage)


# -- checks ----------------------------------------------------------------------------------------------


def _columns(stage: Stage) -> list[tuple[str, tuple[str, ...]]]:
    columns: list[tuple[str, tuple[str, ...]]] = [("SHOPPING (a file)", _NOTE)]
    return [*columns, ("COUNTER (Redis)", _COUNTER)] if stage.sites.redis_server else columns


def _expect_everywhere(stage: Stage, what: str, *command: str, expected: str) -> None:
    stage.expect_state(f"{what} at every site", *command, at=NAMES, expected=(expected,) * len(NAMES))


def _expect_superseded(stage: Stage, id_: str, losers: tuple[str, ...], by: str) -> None:
    """Every site reports the same reason."""
    rule = 4  # replace wins over concurrent

    def reasons() -> list[dict[str, tuple[str | None, int | None]]]:
        logs = [resource_log(stage.sites.urls[site], id_) for site in NAMES]
        return [{op["id"]: (op["beaten_by"], op["rule"]) for op in log} for log in logs]

    def holds() -> bool:
        return all(reason.get(loser) == (by, rule) for reason in reasons() for loser in losers)

    what = f"every site agrees: {by} supersedes {' and '.join(losers)}, by rule {rule}"
    stage.expect(what, holds, lambda: str(reasons()))


def _expect_refused(stage: Stage) -> None:
    """Both sites report which units were refused, and where."""
    expected = {
        ("site1:2", "site2"): "applied 49 units; unit 50 was refused:",
        ("site2:1", "site1"): "applied 50 units; unit 51 was refused:",
    }

    def details() -> list[dict[tuple[str, str], str]]:
        logs = [resource_log(stage.sites.urls[site], "shoes") for site in _TWO]
        return [{(op["id"], r["site"]): r["detail"] for op in log for r in op["replies"]} for log in logs]

    def holds() -> bool:
        return all(detail.get(key, "").startswith(text) for detail in details() for key, text in expected.items())

    stage.expect("both sites report which pair was refused, and where", holds, lambda: str(details()))
