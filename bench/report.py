"""A section of docs/benchmarks.md: written between its own marks, whatever else is in the file."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Section:
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""  # of a section that the page need not have: it is added when it is first measured
    about: str = ""

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(section: Section, machine: str) -> None:
    """Put the section's table and the machine it was measured on into the page."""
    text = PAGE.read_text(encoding="utf-8")
    marks = re.compile(f"(<!-- {section.name} -->\n).*?(<!-- /{section.name} -->)", re.DOTALL)
    if not marks.search(text):
        if not section.title:
            raise ValueError(f"{PAGE} has no place for '{section.name}'")
        place = f"<!-- {section.name} -->\n<!-- /{section.name} -->"
        text = f"{text.rstrip()}\n\n## {section.title}\n\n{section.about}\n\n{place}\n"
    body = f"\n{section.markdown()}\n\nMeasured on {machine}.\n"
    PAGE.write_text(marks.sub(lambda mark: mark[1] + body + mark[2], text), encoding="utf-8")
