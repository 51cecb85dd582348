"""How a service gives long lists in pages: for reads over several sites.

services:
  image:
    pages: {limit: limit, marker: marker, next: $.next}
"""

import re
from dataclasses import dataclass
from typing import Self

from cheops.config.settings import Section, place, read_section, setting, settings_of
from cheops.config.values import ValueType
from cheops.text import printable, shortened
from cheops.yaml_file import Value

LINK = "Link"
_QUERY_NAME = re.compile(r"[A-Za-z0-9_.$\[\]-]{1,64}")
_MEMBER = re.compile(r"\$((?:\.[A-Za-z_@][\w.@-]*){1,8})")
_LIST = re.compile(r"\$\.([A-Za-z_][\w-]*)")


def _read_query_name(value: Value) -> str:
    name = value.string()
    if not _QUERY_NAME.fullmatch(name):
        raise value.fail(f"expected the name of a query parameter, found '{printable(shortened(name))}'")
    return name


def _read_next(value: Value) -> tuple[str, ...]:
    text = value.string()
    if text.lower() == LINK.lower():
        return (LINK,)
    if not (found := _MEMBER.fullmatch(text)):
        shown = printable(shortened(text))
        raise value.fail(f"expected where the next page is, such as Link or $.next, found '{shown}'")
    return ("$", *found[1].split(".")[1:])


def _write_next(names: tuple[str, ...]) -> str:
    return ".".join(names)


def _read_list(value: Value) -> str:
    text = value.string()
    if not (found := _LIST.fullmatch(text)):
        raise value.fail(
            f"expected the member that is the list, such as $.servers, found '{printable(shortened(text))}'"
        )
    return found[1]


_QUERY = ValueType("query parameter", _read_query_name)


@dataclass(frozen=True, slots=True)
class PagesConfig(Section):
    """How a service gives lists in pages. Without `marker` and `page` it gives every list as a whole."""

    items: str = setting(
        ValueType("`$.…`", _read_list, lambda name: f"$.{name}"),
        "",
        "The member of a response that is its list.",
        shown="named like a part of the path, or `items`, `data`, `results`, …",
    )
    limit: str = setting(_QUERY, "", "The query parameter that says how many items a page has.", shown="none")
    marker: str = setting(
        _QUERY, "", "The query parameter that says after which item a page begins: by its id.", shown="none"
    )
    page: str = setting(_QUERY, "", "Or the one that gives the number of a page.", shown="none")
    next: tuple[str, ...] = setting(
        ValueType("`Link` or `$.…`", _read_next, _write_next),
        (),
        "Where a response says what comes next: in the header `Link` (`rel=next`), or in a member that holds a URL, "
        "its query, or a list of links with `rel` and `href`. Without it, a site is asked for the next page "
        "until one is empty.",
        shown="nowhere",
    )

    @property
    def is_paged(self) -> bool:
        return bool(self.marker or self.page)

    def complete(self, value: Value) -> Self:
        if self.marker and self.page:
            raise place(value, "page").fail("expected one of 'marker' and 'page': how a client asks for a later page")
        if not self.is_paged and (self.limit or self.next):
            raise value.fail(
                "expected 'marker' or 'page', too: the query parameter with which a later page is asked for"
            )
        return self


def _read_pages(value: Value) -> PagesConfig:
    if value.is_text:
        if (text := value.string()) != "none":
            raise value.fail(
                f"expected none, or settings such as limit and marker, found '{printable(shortened(text))}'"
            )
        return PagesConfig()
    return read_section(PagesConfig, value)


PAGES = ValueType("`none` or section", _read_pages, settings=settings_of(PagesConfig))
