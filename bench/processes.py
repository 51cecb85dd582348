"""Processes by where they run."""

from pathlib import Path


def in_folder(place: Path) -> list[int]:
    """The processes whose working directory this is."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == place:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
