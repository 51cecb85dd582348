"""What the story of `cheops demo` is told with: words, real commands and what they print, checks, pauses.

Whatever the story claims is checked before it goes on, in every mode: against the applications of the sites,
asked past Cheops, or against what an agent answers. A claim that does not come true ends the demo.
"""

import contextlib
import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cheops.cli.output import print_table, table
from cheops.demo.answers import HttpAnswer, http_answer
from cheops.demo.sites import NAMES, DemoError, Sites

_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.2
_PAUSE_S = 8.0


class Stage:
    """The sites, the visitor's terminal, and how fast to go."""

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
        """No site reaches another one any more."""
        self.sites.wires.cut()
        self._tell(f"network: {' | '.join(NAMES)}   (cut)", "bold yellow")

    def heal(self) -> None:
        self.sites.wires.heal()
        self._tell(f"network: {' — '.join(NAMES)}   (whole)", "bold green")

    def _tell(self, text: str, style: str) -> None:
        self._out.print()
        self._out.print(text, style=style)

    def run(self, site: str, *argv: str) -> None:
        """Type a command at a site, and look that it ends as it should."""
        self._out.print()
        line = f"cheops {shlex.join(argv)}"
        shown = line
        if len(line) + len(site) > self._out.width:
            shown = line.replace(" --type ", " \\\n    --type ")  # still one that can be typed
        self._out.print(Text.assemble((f"{site}$ ", "bold cyan"), (shown, "green")), soft_wrap=True)
        sys.stdout.flush()
        with _asking(self.sites.urls[site]):
            code = self._root.main(args=list(argv), prog_name="cheops", standalone_mode=False)
        sys.stdout.flush()
        if code:
            raise DemoError(f"'{line}' at {site} ended with {code}")

    def curl(  # noqa: PLR0913 - what a request has
        self,
        site: str,
        service: str,
        path: str,
        *,
        method: str = "",
        data: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """A request to a service, by its gateway at a site; shown as curl would be told to make it."""
        url = self.sites.cloud.url(site, service)
        words = [word for name, value in (headers or {}).items() for word in ("-H", f"{name}: {value}")]
        words += ["-X", method] if method else []
        words += ["-d", data] if data is not None else []
        line = shlex.join(["curl", f"{url}{path}", *words]).replace(" -d ", " \\\n    -d ")
        self._out.print()
        self._out.print(Text.assemble((f"{site}$ ", "bold cyan"), (line, "green")), soft_wrap=True)
        method = method or ("GET" if data is None else "POST")
        kind = {} if data is None else {"Content-Type": "application/x-www-form-urlencoded"}
        answer = http_answer(url, method, path, kind | dict(headers or {}), data)
        self._out.print(Text(answer.body.decode().rstrip() or f"({answer.status})"), soft_wrap=True)
        if answer.status >= 400:
            raise DemoError(f"'{line}' at {site} was answered with {answer.status}")
        return answer

    def exec(self, site: str, id_: str, type_: str, command: str, *more: str) -> None:
        """An operation on a resource, made at a site."""
        self.run(site, "exec", "--id", id_, *more, "--type", type_, "--command", command)

    def shows(self, what: str, *command: str, at: tuple[str, ...], expected: tuple[str, ...]) -> None:
        """Ask an application itself, at each of these sites, until it says what is expected."""
        found: list[str] = []

        def is_so() -> bool:
            found[:] = [self.sites.state(site, *command) for site in at]
            return tuple(found) == expected

        self.expect(what, is_so, lambda: ", ".join(map(repr, found)))

    def expect(self, what: str, is_so: Callable[[], bool], found: Callable[[], str]) -> None:
        """Wait until it is so."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline_s:
                raise DemoError(f"the demo does not go as it should: not {what}, but {found()}")
            time.sleep(_LOOK_AGAIN_S)
        self._out.print(Text.assemble(("✓ ", "bold green"), what))

    def compare(self, *columns: tuple[str, tuple[str, ...]]) -> None:
        """What the applications of the sites say themselves, side by side."""
        made = table("SITE", *(title for title, _ in columns))
        for site in NAMES:
            made.add_row(site, *(self.sites.state(site, *command) for _, command in columns))
        self._out.print()
        if self._out.is_terminal:
            self._out.print(Padding(made, (0, 0, 0, 2)))
        else:
            print_table(self._out, made)
        self._out.print()

    def pause(self) -> None:
        """Until Enter, or for some seconds; only where somebody looks on."""
        if not self._pauses:
            return
        hint = "Enter to go on" if sys.stdin.isatty() else "…"
        self._out.print(Text(f"  {hint}", style="dim"), end="")
        sys.stdout.flush()
        if sys.stdin.isatty() and select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            sys.stdin.readline()
            self._out.file.write("\x1b[1A")  # the Enter went to the next line
        elif not sys.stdin.isatty():
            time.sleep(_PAUSE_S)
        self._out.file.write("\r\x1b[2K")


@contextlib.contextmanager
def _asking(url: str) -> Iterator[None]:
    """CHEOPS_URL names this agent meanwhile."""
    before = os.environ.get("CHEOPS_URL")
    os.environ["CHEOPS_URL"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["CHEOPS_URL"]
        else:
            os.environ["CHEOPS_URL"] = before
