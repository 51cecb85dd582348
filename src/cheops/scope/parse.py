"""From text to scope: `parse(text)`, cached.

The grammar is in grammar.lark. Before it, `scan` refuses what no parser should see; after it, `build`
makes our own tree and checks what a grammar cannot say; `diagnose` finds words for what the parser refuses.
"""

from functools import cache, lru_cache

from lark import Lark
from lark.exceptions import UnexpectedInput

from cheops.scope.build import Builder
from cheops.scope.builtin import BUILTIN
from cheops.scope.diagnose import diagnose
from cheops.scope.errors import ScopeSyntaxError
from cheops.scope.functions import Functions
from cheops.scope.names import normal
from cheops.scope.scan import MAX_CANONICAL, scan
from cheops.scope.tree import Scope

_SHORT = 1_024


@cache
def _grammar() -> Lark:
    """Made when it is first needed: many commands never need it."""
    return Lark.open_from_package(__package__, "grammar.lark", parser="lalr", maybe_placeholders=False)


def parse(text: str, functions: Functions = BUILTIN) -> Scope:
    """The scope that a text says; raises ScopeSyntaxError. Equal texts are parsed once."""
    return (_parse_short if len(text) <= _SHORT else _parse_long)(text, functions)


def _parse(text: str, functions: Functions) -> Scope:
    text = normal(text)
    scan(text)
    parser = _grammar().parse_interactive(text)  # on an error it can tell what it would have accepted
    try:
        parser.exhaust_lexer()
        tree = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedInput as error:
        raise diagnose(parser, text, error) from None
    scope = Builder(text, functions).scope(tree)
    if len(text) > _SHORT and len(str(scope)) > MAX_CANONICAL:
        raise ScopeSyntaxError(f"the scope is longer than {MAX_CANONICAL:,} characters")
    return scope


# Two caches bound the memory that strangers can make us keep: many short texts, or a few long ones.
_parse_short = lru_cache(maxsize=4_096)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)
