"""Paths in the configuration file: they start at the directory of the file, or at the user's home (`~`)."""

from pathlib import Path

from cheops.documents import Value


def path_at(value: Value, folder: Path) -> Path:
    """The path that stands at a place of a document."""
    text = value.string()
    if not text.strip() or "\0" in text:
        raise value.fail("a path cannot be empty or hold the character U+0000")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise value.fail(f"there is no such home directory: {text.split('/')[0]}") from None
