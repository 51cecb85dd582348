"""With whose rights changes run: the credentials of a site, who its clients are, and what it signs itself."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cheops.config.settings import REQUIRED, Section, is_set, place, section, setting
from cheops.config.values import DURATION, PATH, URL_WITH_PATH, ValueType
from cheops.text import printable, shortened
from cheops.yaml_file import Value

LOCATION = "Location"
HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,100}")
_ID_PATH = re.compile(r"\$((?:\.[A-Za-z_][\w-]*){1,8})")
_WORD = re.compile(r"[a-z0-9-]{1,40}")


def _read_program(value: Value) -> tuple[str, ...]:
    words = tuple(item.string() for item in value.items())
    if not words or not words[0]:
        raise value.fail("expected a program and its arguments, as a list")
    return words


def _read_header(value: Value) -> str:
    name = value.string()
    if not HEADER.fullmatch(name):
        raise value.fail(f"'{printable(shortened(name))}' is not the name of a header")
    return name


def _read_header_copies(value: Value) -> tuple[tuple[str, str], ...]:
    for name, at in value.mapping().items():
        if not HEADER.fullmatch(name):
            raise at.fail(f"'{printable(shortened(name))}' is not the name of a header")
    return tuple((name, _read_header(at)) for name, at in value.mapping().items())


def read_id_path(value: Value) -> tuple[str, ...]:
    text = value.string()
    if text.lower() == LOCATION.lower():
        return ()
    if not (path := _ID_PATH.fullmatch(text)):
        shown = printable(shortened(text))
        raise value.fail(f"expected where a new id is, such as $.id, $.image.id or Location, found '{shown}'")
    return tuple(path[1].split(".")[1:])


def write_id_path(names: tuple[str, ...]) -> str:
    return ".".join(("$", *names)) if names else LOCATION


def _read_word(value: Value) -> str:
    text = value.string()
    if not _WORD.fullmatch(text):
        raise value.fail(
            f"expected small letters, digits and -, such as us-east-1, found '{printable(shortened(text))}'"
        )
    return text


@dataclass(frozen=True, slots=True)
class AuthConfig(Section):
    """Where the credentials come from with which this site runs operations: lines of headers, in a file or printed by a
    command."""

    file: Path | None = setting(PATH, None, "A file with lines of headers, `X-Auth-Token: …`.")
    command: tuple[str, ...] = setting(
        ValueType("list of words", _read_program),
        (),
        "A program and its arguments that prints such lines. With `replicate_as: mapped` the environment variable "
        "CHEOPS_CLIENT holds the client; for one that it does not know, the program exits with another code than 0.",
        shown="none",
    )
    folder: Path | None = setting(
        PATH,
        None,
        "For `replicate_as: mapped`: a directory with one such file for each client, named after it "
        "(percent-encoded, except letters, digits and `_.-~@`).",
    )
    every_s: float = setting(
        DURATION, 60.0, "How long they are used before they are read again; also read again after a 401."
    )

    def complete(self, value: Value) -> Self:
        if sum(is_set(value, key) for key in ("file", "command", "folder")) != 1:
            raise value.fail("expected one of 'file', 'command' and 'folder': where lines of headers come from")
        return self


@dataclass(frozen=True, slots=True)
class ClientConfig(Section):
    """How the site that receives a change finds out who its client is."""

    ask: str = setting(
        URL_WITH_PATH,
        "",
        "A URL that is requested (`GET`) with the client's own credentials: its response says who the client is. A "
        "response that is not 2xx refuses the change.",
        shown="none",
    )
    with_headers: tuple[tuple[str, str], ...] = setting(
        ValueType("headers by header", _read_header_copies),
        (),
        "Headers of that request that repeat one of the client's: `{X-Subject-Token: X-Auth-Token}`.",
        key="with",
        shown="none",
    )
    value: tuple[str, ...] = setting(
        ValueType("`$.…`", read_id_path, write_id_path),
        (),
        "Where the client is in the JSON of that response: `$.token.project.id`.",
        shown="none",
    )
    header: str = setting(
        ValueType("header", _read_header), "", "Or the header of that response that names the client.", shown="none"
    )
    claim: str = setting(
        ValueType("name", Value.string),
        "",
        "Instead of `ask`: a claim of the JSON Web Token in `Authorization: Bearer …`, such as `sub`. The service must "
        "refuse requests with a wrong token.",
        shown="none",
    )

    def complete(self, value: Value) -> Self:
        if bool(self.ask) == bool(self.claim):
            raise value.fail("expected one of 'ask' and 'claim': how to find out who a client is")
        if self.ask and bool(self.value) == bool(self.header):
            raise place(value, "ask").fail("expected one of 'value' and 'header': where the response names the client")
        if self.claim and (self.value or self.header or self.with_headers):
            raise place(value, "claim").fail("'value', 'header' and 'with' are about the response to 'ask'")
        return self


@dataclass(frozen=True, slots=True)
class SigV4Config(Section):
    """AWS Signature Version 4, as S3 and its relatives check it."""

    file: Path = setting(
        PATH,
        REQUIRED,
        "A file with the access key of this site, as the AWS tools write it: `aws_access_key_id`, "
        "`aws_secret_access_key` and perhaps `aws_session_token`, below `[default]`.",
    )
    profile: str = setting(ValueType("name", Value.string), "default", "The section of that file.")
    region: str = setting(ValueType("word", _read_word), "us-east-1", "The region that is signed.")
    service: str = setting(ValueType("word", _read_word), "s3", "The service that is signed.")


@dataclass(frozen=True, slots=True)
class SignConfig(Section):
    """How this site signs requests itself."""

    sigv4: SigV4Config = setting(section(SigV4Config), REQUIRED, "AWS Signature Version 4.")
