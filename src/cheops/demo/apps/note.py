"""A notebook: one plain file per page, in the directory where it is started.

    note set PAGE TEXT    the page holds this line, and nothing else
    note add PAGE TEXT    one more line
    note show PAGE
    note clear PAGE       an empty page

It takes plain names only: whoever may reach the demo's agents must not reach other files.
"""

import sys
from pathlib import Path

_USAGE = "usage: note set|add PAGE TEXT, note show|clear PAGE"


def main(argv: list[str]) -> str:
    match argv:
        case ["set", name, text]:
            page(name).write_text(f"{text}\n", encoding="utf-8")
        case ["add", name, text]:
            with page(name).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        case ["clear", name]:
            page(name).write_text("")
        case ["show", name]:
            return page(name).read_text(encoding="utf-8")
        case _:
            sys.exit(_USAGE)
    return ""


def page(name: str) -> Path:
    if not name or "/" in name or name.startswith((".", "-")):
        sys.exit(f"'{name}' is not the name of a page")
    return Path(name)


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
