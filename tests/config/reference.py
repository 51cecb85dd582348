"""The tables of docs/configuration.md, from the declarations of the settings.

A table stands between two marks, of which the first names a section of the file, or the settings that one field of a
section holds (`types.NAME/command`):

    <!-- settings: gateway -->
    <!-- end of settings -->
"""

import re

from cheops.config.settings import Setting, settings_of, walk
from cheops.config.site import SiteConfig

BLOCK = re.compile(r"(?<=<!-- settings: )(\S+)( -->\n).*?(?=<!-- end of settings -->)", re.DOTALL)


def settings_by_path() -> dict[str, Setting]:
    return dict(walk(settings_of(SiteConfig)))


def with_tables(page: str) -> str:
    """The page with its tables as the declarations say."""
    return BLOCK.sub(lambda block: f"{block[1]}{block[2]}{_table(*block[1].partition('/')[::2])}", page)


def _table(section: str, group: str) -> str:
    rows = [
        f"| `{path}` | {one.default_text} | {one.type.name} | {one.doc} |\n"
        for path, one in settings_by_path().items()
        if one.group == group and (path.rpartition(".")[0] or "site") == section
    ]
    assert rows, f"there is no section '{section}' with '{group}'"
    return "".join(["\n| setting | default | type | meaning |\n| --- | --- | --- | --- |\n", *rows, "\n"])
