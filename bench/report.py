"""A section of docs/benchmarks.md: written between its own marks, whatever else is in the file.

The text about its numbers (`about`) and its picture are written with them, so that they always fit.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from bench.charts import BarChart, LineChart

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PICTURES = "pictures/bench"


@dataclass(frozen=True)
class Section:
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""  # of a section that the page does not have yet: it is added when it is first measured
    about: str = ""
    picture: BarChart | LineChart | None = None

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    @property
    def picture_file(self) -> str:
        """The path of the picture, relative to the page."""
        return f"{PICTURES}/{self.name}.svg"

    def body(self, machine: str) -> str:
        """The content between its marks."""
        shown = f"![{self.picture.title}]({self.picture_file})" if self.picture else ""
        parts = (self.about, self.markdown(), shown, f"Measured on {machine}.")
        return "\n" + "\n\n".join(filter(None, parts)) + "\n"


def write(section: Section, machine: str, page: Path = PAGE) -> None:
    """Put the section, and the machine it was measured on, into the page; and its picture beside it."""
    text = page.read_text(encoding="utf-8")
    marks = re.compile(f"(<!-- {section.name} -->\n).*?(<!-- /{section.name} -->)", re.DOTALL)
    if not marks.search(text):
        if not section.title:
            raise ValueError(f"{page} has no place for '{section.name}'")
        place = f"<!-- {section.name} -->\n<!-- /{section.name} -->"
        text = f"{text.rstrip()}\n\n## {section.title}\n\n{place}\n"
    body = section.body(machine)
    page.write_text(marks.sub(lambda mark: mark[1] + body + mark[2], text), encoding="utf-8")
    if section.picture:
        picture = page.parent / section.picture_file
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(section.picture.svg(), encoding="utf-8")
