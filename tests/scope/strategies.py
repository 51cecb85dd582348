"""Hypothesis strategies for whole scopes: every kind of node, and names of every awkward kind."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from cheops.scope import Across, And, At, Binding, Call, Consistency, Duration, Location, Otherwise, Scope
from cheops.scope.names import name_problem

_AWKWARD = [
    "DC 1",
    "DC  1",
    " a",
    "a ",
    "10ms",
    "1.5s",
    "10",
    "10 ms",
    "-",
    ".",
    "around",
    "a:b",
    "{",
    '"',
    "\\",
    'a\\"b',
    "日本",
    "ça",
]

names = st.one_of(
    st.sampled_from(_AWKWARD),
    st.from_regex(r"\A[a-z][a-z0-9_.\-]{0,8}\Z"),
    st.text(min_size=1, max_size=8),
    st.text(alphabet=' "\\&%;:,(){}+.-_a1s', min_size=1, max_size=8),
).filter(lambda name: name_problem(name) is None)

durations = st.integers(0, 86_400_000_000).map(Duration)

_levels = st.sampled_from([level.value for level in Consistency])


def _grown(
    places: st.SearchStrategy[At],
) -> Callable[[st.SearchStrategy[Location]], st.SearchStrategy[Location]]:
    def grow(inner: st.SearchStrategy[Location]) -> st.SearchStrategy[Location]:
        parts = st.lists(inner, min_size=2, max_size=4).map(tuple)
        return st.one_of(
            parts.map(And),
            parts.map(Across),
            parts.map(Otherwise),
            st.tuples(places, durations).map(lambda arguments: Call("around", arguments)),
            st.tuples(_levels, inner).map(lambda call: Call(call[0], (call[1],))),
        )

    return grow


def _scopes(sites: st.SearchStrategy[str], services: st.SearchStrategy[str]) -> st.SearchStrategy[Scope]:
    places = sites.map(At)
    locations: st.SearchStrategy[Location] = st.recursive(places, _grown(places), max_leaves=12)
    bare = locations.map(lambda location: Scope((Binding(None, location),)))
    bound = st.dictionaries(services, locations, min_size=1, max_size=4).map(
        lambda bindings: Scope(tuple(Binding(service, location) for service, location in bindings.items()))
    )
    return st.one_of(bare, bound)


def scopes_of(sites: Sequence[str], services: Sequence[str]) -> st.SearchStrategy[Scope]:
    """Scopes over a known world, most of which can be resolved."""
    return _scopes(st.sampled_from(sites), st.sampled_from(services))


scopes = _scopes(names, names)
