"""Histories of the soak that once went wrong, each for a reason of its own."""

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES


@pytest.mark.parametrize(
    ("seed", "sites", "profile"),
    [
        # A stranger was kept without the seal that made it one, and its matrix came into force.
        (8422, 3, "hostile"),
        # Who came later did not know a forgotten list, and refused what was made under it.
        (20073, 5, "policed"),
        # That a copy was deleted was forgotten with the list that asked for it.
        (50349, 5, "policed"),
        # An older list than the one that counted was left, and judged what was made under that.
        (90693, 4, "policed"),
        # A snapshot brought a seal that its site had made alone.
        (52, 5, "byzantine"),
        # A site that was just added had made the resource a second time, and refused the snapshot of the others.
        (69, 5, "byzantine"),
        # What the application held of a content that does not stand was forgotten with a restart.
        (203, 5, "byzantine"),
        # An operation was judged only by the second content of a list of sites.
        (233, 5, "byzantine"),
        # A hostile site orphaned its own operations, and the model did not know.
        (251, 5, "byzantine"),
        # A hostile site took a name for another type.
        (356, 5, "byzantine"),
        # The same, and sites merged it after the hostile one was forgotten.
        (512, 5, "byzantine"),
        # A site took a resource whose list does not name it.
        (689, 5, "byzantine"),
        # A site that was added had begun the resource itself, and refused the first list of the others.
        (574, 5, "byzantine"),
        # A site took a name from a hostile one, and refused the seal of all others.
        (766, 5, "byzantine"),
        # A seal was judged by one content of a list of sites; the type was learned from an orphan.
        (1163, 5, "byzantine"),
        # A seal was refused because it took the effect of what a forgotten site had made.
        (1176, 5, "byzantine"),
        # The content that stands set no list of sites, and the other one did.
        (1379, 5, "byzantine"),
        # The other way round, with a seal after it.
        (3603, 5, "byzantine"),
        # A seal that another one orphans was taken by some sites.
        (3765, 5, "byzantine"),
        # After a restart, an earlier seal of a hostile site seemed to end the checkpoint of the others.
        (2480, 5, "byzantine"),
        # An operation came after the third content of an id.
        (3939, 5, "byzantine"),
        # Of two types that a hostile site gave a name, the false one stood, and the true beginning was refused.
        (3439, 5, "byzantine"),
        # A seal that a hostile site had made alone did not count any more after that site was forgotten.
        (3974, 5, "byzantine"),
        # A checkpoint held operations that no seal covers, and a site that came back refused it for ever.
        (40083, 5, "moving"),
        (7287, 5, "byzantine"),
        # What an application still held was forgotten with its operation, after a restart.
        (5262, 5, "byzantine"),
        # A seal of a hostile site alone took another one's place, and what that had orphaned gave the type.
        (1858, 5, "byzantine"),
        # The snapshot of honest sites was refused, because it had a seal that theirs orphans.
        (2732, 5, "byzantine"),
        # A hostile site undid its own lists of sites with a seal of its own.
        (5423, 5, "byzantine"),
        (7002, 5, "byzantine"),
        # The seal of a hostile site alone made the resource of the others look like the younger one.
        (1626, 5, "byzantine"),
        # A site had begun the resource with fewer sites, and those that had not known of it refused that.
        (446, 5, "byzantine"),
        # A site gave way only to those that had signed, and not to those that had taken their seal.
        (2497, 5, "byzantine"),
        # A site was alone on the list: its seals, its snapshots, and lists that lead to others.
        (28, 3, "moving"),
        (231, 3, "moving"),
        (86, 3, "policed"),
        (1282, 4, "policed"),
        # A late piece of an earlier snapshot had its receiver begin anew, and the sender did not go back.
        (18, 4, "restored"),
        # What a site had sealed alone under a wrong clock had no seal any more after the clock was cured.
        (231, 3, "clocks"),
        # The operator of the simulator spoke of an earlier run than the one that a crash had left open.
        (50010, 5, "members"),
        # A site that took a checkpoint did not count as forgotten any more what it had forgotten alone.
        (50007, 4, "members"),
        # An old copy was compared with sites that had more, and the checker took other operations for its own.
        (50006, 4, "restored"),
    ],
)
def test_what_once_failed_is_well(seed: int, sites: int, profile: str) -> None:
    assert play(seed, sites, PROFILES[profile]).problems == ()
