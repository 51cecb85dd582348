"""How many there are of something. Never below zero: who takes more than there is gets nothing.

    stock set ITEM 100    there are so many
    stock take ITEM 50    so many fewer, or a refusal
    stock show ITEM

One plain file per item, in the directory where it is started; plain names only.
"""

import sys
from pathlib import Path

_USAGE = "usage: stock set|take ITEM NUMBER, stock show ITEM"


def main(argv: list[str]) -> str:
    match argv:
        case ["set", name, amount]:
            shelf(name).write_text(f"{number(amount)}\n")
        case ["take", name, amount]:
            there, wanted = int(shelf(name).read_text()), number(amount)
            if wanted > there:
                sys.exit(f"{there} is less than {wanted}")
            shelf(name).write_text(f"{there - wanted}\n")
        case ["show", name]:
            return shelf(name).read_text()
        case _:
            sys.exit(_USAGE)
    return ""


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        sys.exit(f"'{text}' is not a number of things")
    return int(text)


def shelf(name: str) -> Path:
    if not name or "/" in name or name.startswith((".", "-")):
        sys.exit(f"'{name}' is not the name of an item")
    return Path(name)


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
