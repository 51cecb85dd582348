"""`cheops-text`: a text in a file of a site, changed by edits.

    cheops-text FILE                print the text; nothing if there is no file
    cheops-text FILE HASH EDIT      edit it, if the text has this hash; '-' is any
    cheops-text --save FILE         print the text as one line of JSON
    cheops-text --load FILE JSON    write such a line back

The file is replaced as a whole, so a reader sees the text before an edit or after it. The agent starts this for every
edit: it imports the standard library only.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cheops.logic.edit import ANY, HASH, MAX_LENGTH, apply, decoded, hash_of

CHANGED = "the text has changed since"  # `cheops edit` looks for this
_USAGE = "usage: cheops-text FILE | FILE HASH EDIT | --save FILE | --load FILE JSON"


def main() -> None:
    try:
        sys.stdout.write(run(sys.argv[1:]))
    except (OSError, ValueError) as error:
        sys.exit(f"cheops-text: {error}")


def run(words: Sequence[str]) -> str:
    """What to print."""
    match words:
        case ["--save", file]:
            return json.dumps(_read(Path(file)), ensure_ascii=False) + "\n"
        case ["--load", file, text]:
            state = json.loads(text)
            if not isinstance(state, str):
                raise ValueError("the state is no text in JSON")  # noqa: TRY004 - of a word that a user wrote
            _write(Path(file), state)
        case [file]:
            return _read(Path(file))
        case [file, hash_, edit]:
            _edit(Path(file), hash_, edit)
        case _:
            raise ValueError(_USAGE)
    return ""


def _edit(file: Path, hash_: str, word: str) -> None:
    if hash_ != ANY and not HASH.fullmatch(hash_):
        raise ValueError(f"'{hash_}' is no hash; {_USAGE}")
    text = _read(file)
    if hash_ not in (ANY, hash_of(text)):
        raise ValueError(f"{CHANGED}: it is {hash_of(text)} now, not {hash_}")
    _write(file, apply(decoded(word), text))


def _read(file: Path) -> str:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return ""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is no text in UTF-8") from None


def _write(file: Path, text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a text has at most {MAX_LENGTH:,} characters")
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as content:
            content.write(text.encode())
            content.flush()
            os.fsync(content.fileno())
        if file.exists():
            new.chmod(file.stat().st_mode & 0o777)
        new.replace(file)
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


if __name__ == "__main__":
    main()
