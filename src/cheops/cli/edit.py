"""`cheops edit`: change a text in an editor, at a site whose resource type has `logic: text`.

Every save is one operation, made for the text that the site has at that moment. What others wrote there since the
editor was opened stays: the edit is moved over it. The editor keeps the text that it has, so the next save is compared
with the last one, not with the text of the site.
"""

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from cheops.api.models.operations import Accepted, SubmitRequest, Wait
from cheops.cli.options import IdArgument, TimeoutOption, UrlOption, agent
from cheops.cli.output import console
from cheops.client import Agent, AgentError
from cheops.errors import CheopsError, ClientError
from cheops.logic.edit import Edit, apply, difference, encoded, hash_of, moved, pieces
from cheops.logic.program import CHANGED
from cheops.text import in_words, printable

_PROGRAM = "cheops-text"
_LOOK_EVERY_S = 0.5
_EMPTY_READS = 3  # of a text that is there, before it counts as empty
_MAX_ATTEMPTS = 20  # of one save, while others change the text
_MAX_PIECE = 12_000  # of one operation, whose command line has at most 100,000 characters


def edit_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    sites: Annotated[
        str, typer.Option("--sites", help="The sites, such as 'site1 & site2'. Required for a new resource.")
    ] = "",
    type_: Annotated[str, typer.Option("--type", help="The type of the operations, as in the matrix.")] = "edit",
    resource_type: Annotated[
        str, typer.Option("--resource-type", help="The type of a new resource. Default: the only one with such texts.")
    ] = "",
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
) -> None:
    """Edit a text in $VISUAL or $EDITOR, and submit each save as an operation.

    For resources of a type with 'logic: text'. Edits that other sites make at the same time, or while the network is
    cut, are merged with these.
    """
    text = SharedText(agent(url), id_, sites, type_, resource_type, timeout)
    text.open()
    folder = Path(tempfile.mkdtemp(prefix="cheops-edit-"))
    file = folder / Path(id_).name
    try:
        _edit(text, file)
    except CheopsError as error:
        raise ClientError(f"{error}\n  Your text is in {file}") from None
    file.unlink(missing_ok=True)
    with suppress(OSError):  # an editor may leave a file of its own
        folder.rmdir()
    out = console()
    if not text.saved:
        out.print("nothing was changed")
        return
    out.print(f"saved at {text.site}: {in_words(text.saved)}", soft_wrap=True)


def _edit(text: "SharedText", file: Path) -> None:
    file.write_bytes(text.buffer.encode())
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # By a shell, as git and crontab do: EDITOR may have options.
    argv = ["/bin/sh", "-c", f'{editor} "$1"', "editor", str(file)]
    process = subprocess.Popen(argv)  # noqa: S603 - the user's own  # nosec B603
    while True:
        try:
            code = process.wait(_LOOK_EVERY_S)
            break
        except subprocess.TimeoutExpired:
            with suppress(CheopsError):  # reported at the end, if it fails then too
                _save(text, file)
    if code:  # `:cq` in vi: the user gave up; what was saved before stays
        raise ClientError(f"the editor '{editor}' has failed (exit code {code}); set EDITOR to choose another one")
    _save(text, file)


def _save(text: "SharedText", file: Path) -> None:
    """Submit what the editor has saved. An editor that is just writing may leave half a character: the next look."""
    try:
        content = file.read_bytes().decode()
    except UnicodeDecodeError:
        raise ClientError("the editor has saved what is no text in UTF-8") from None
    except FileNotFoundError:
        return  # some editors delete the file before they write it
    if content != text.buffer:
        text.save(content)


@dataclass
class SharedText:
    """A text at a site, and what the editor has of it."""

    client: Agent
    id: str
    sites: str
    type: str
    resource_type: str
    timeout_s: float
    site: str = ""
    buffer: str = ""  # what the editor saved last, or was opened with
    saved: list[str] = field(default_factory=list)  # the operations
    _command: tuple[str, ...] = ()  # without hash and edit
    _is_new: bool = False

    def open(self) -> None:
        """Find out how the text is read and edited there, and read it. Raises CheopsError."""
        self.site = self.client.health().site
        resource = None
        try:
            resource = self.client.resource(self.id)
        except AgentError as error:
            if error.http_status != 404:
                raise
        self._is_new = resource is None or resource.deleted
        self._command = self._edit_command(resource.type if resource else self.resource_type)
        if resource and self.site not in (places := [one.site for one in resource.sites]):
            self.site = places[0]
        self.buffer = self._read()
        for _ in range(_EMPTY_READS if resource and not resource.deleted else 0):
            if self.buffer:
                break
            time.sleep(_LOOK_EVERY_S)  # the site may be merging, which begins with the reset
            self.buffer = self._read()

    def _edit_command(self, rtype: str) -> tuple[str, ...]:
        """The words of the first pattern of the type that allows edits, such as `cheops-text pages/__ID__ * *`."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.client.types().types:
            for pattern in one.allow if rtype in ("", one.name) else ():
                words = tuple(shlex.split(pattern))
                if len(words) > 3 and Path(words[0]).name == _PROGRAM and words[-2:] == ("*", "*"):
                    found.setdefault(one.name, words[:-2])
        if len(found) == 1:
            [(self.resource_type, command)] = found.items()
            return command
        if found:
            raise ClientError(f"which type of text is it? Add --resource-type {'|'.join(found)}")
        of = f"the type '{printable(rtype)}'" if rtype else "no type"
        raise ClientError(
            f"{of} at {self.site} {'allows no' if rtype else 'allows'} edits of texts; "
            f"it needs 'logic: text', and \"{_PROGRAM} texts/__ID__ * *\" in its 'allow'"
        )

    def _read(self) -> str:
        from cheops.client.agent import Form  # noqa: PLC0415 - slow to import

        if self._is_new:
            return ""
        shown = self.client.show(self.id, Form({"sites": self.site}, {}), self.timeout_s)[self.site]
        if shown["Status"] != "OK" or shown.get("Cut"):
            why = "it is longer than 'max_output' of its type" if shown.get("Cut") else shown["Output"]
            raise ClientError(f"the text of '{printable(self.id)}' at {self.site} cannot be read: {why}")
        return str(shown["Output"])

    def save(self, content: str) -> None:
        """Raises CheopsError; then the same save can be tried again."""
        for _ in range(_MAX_ATTEMPTS):
            now = self._read()
            edit = moved(difference(self.buffer, content), difference(self.buffer, now))
            if self._submit(now, edit):
                self.buffer = content
                return
        raise ClientError(f"others change '{printable(self.id)}' all the time: nothing was saved; try again")

    def _submit(self, text: str, edit: Edit) -> bool:
        """False: the text has changed, and nothing was done."""
        for number, piece in enumerate(pieces(edit, _MAX_PIECE)):
            command = shlex.join((*self._command, hash_of(text), encoded(piece)))
            request = SubmitRequest(type=self.type, command=command, sites=self.sites, resource_type=self.resource_type)
            accepted = self.client.submit(self.id, request, wait=Wait.FIRST, timeout_s=self.timeout_s)
            if why := _refusal(accepted):
                if CHANGED in why and number == 0:
                    return False
                raise ClientError(why)
            self.saved.append(accepted.operation)
            self._is_new, text = False, apply(piece, text)
        return True


def _refusal(accepted: Accepted) -> str:
    details: Iterator[str] = (answer.detail or answer.output for answer in accepted.answers)
    return "; ".join(details) or "it was refused" if accepted.verdict == "VOID" else ""
