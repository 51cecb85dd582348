"""Which operations a seal orphans, and which of two seals stands."""

from msgspec.structs import replace

from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Seal, Stamp, Verdict
from cheops.log.seals import excludes, sealed_by, standing

A, B, C = (Origin(name, "1") for name in "abc")


def made(origin: Origin, seq: int, deps: dict[Origin, int], time_ms: int, seal: Seal | None = None) -> Operation:
    stamp = Stamp(time_ms, 0, origin)
    ref = MatrixRef(Matrix().hash, Stamp(0, 0, Origin("-", "-")))
    kind = Kind.SEAL if seal else Kind.NORMAL
    return Operation(
        "n", "n", "inc", kind, Command("inc 1"), origin, seq, deps, stamp, ref, verdict=Verdict.OK, seal=seal
    )


def sealed(origin: Origin, sites: str, time_ms: int = 9) -> Operation:
    """The second operation of an origin, which seals its first."""
    return made(
        origin,
        2,
        {origin: 1},
        time_ms,
        Seal({origin: 1}, Stamp(time_ms, 0, origin), tuple(Origin(name, "1") for name in sites)),
    )


def test_a_seal_of_several_sites_orphans_what_does_not_depend_on_what_is_sealed() -> None:
    seal = sealed(A, "ab")
    assert excludes(seal, made(C, 1, {}, 20))
    assert excludes(seal, made(B, 1, {}, 20))
    assert not excludes(seal, made(C, 1, {A: 1}, 20)), "it depends on all that is sealed"
    assert not excludes(replace(seal, deps={A: 1, C: 1}), made(C, 1, {}, 5)), "the author of the seal knew it"
    assert not excludes(seal, seal)


def test_a_seal_of_one_site_orphans_nothing() -> None:
    seal = sealed(A, "a")
    assert not excludes(seal, made(C, 1, {}, 20))
    assert not excludes(seal, made(Origin("a", "2"), 1, {}, 20)), "otherwise it could undo its own lists of sites"
    assert not excludes(seal, sealed(C, "c"))
    assert standing([seal, sealed(C, "c", 1)]) == [sealed(C, "c", 1), seal]


def test_the_resource_that_more_sites_sealed_stands_however_early_the_other_is_stamped() -> None:
    early, late = sealed(C, "c", 1), sealed(A, "ab", 9)
    assert standing([early, late]) == standing([late, early]) == [late]
    alike = sealed(B, "bc", 8)
    assert standing([late, alike]) == [alike], "of as many sites, the one that was sealed first"


def test_a_seal_does_not_prove_what_its_author_made_in_between() -> None:
    seal = sealed(A, "ab")
    assert sealed_by([seal]) == {A: 2}
    assert sealed_by([replace(seal, seq=9, deps={A: 8})]) == {A: 1}
    assert sealed_by([made(A, 1, {}, 1)]) == {}


def test_a_seal_of_one_site_does_not_say_which_of_two_resources_is_the_older() -> None:
    history = History(lambda _hash: Matrix())
    for op in (made(C, 1, {}, 1), sealed(C, "c", 2)):
        history.add(op)
    assert history.root is None
    for op in (made(A, 1, {}, 3), sealed(A, "ab", 9)):
        history.add(op)
    assert history.root == Stamp(9, 0, A)
