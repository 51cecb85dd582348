"""`cheops demo` on a terminal: the story with pauses, then the sites stay up and the network can be cut."""

import re
import shutil
from pathlib import Path

from tests.demo.terminal import Visitor, nothing_is_left
from tests.support.command import run_here

ACTS = (
    "One after the other",
    "The network is cut, and everybody goes on",
    "The network is back",
    "Who won, and why",
    "A stock that never falls below zero",
    "Services that nobody changed",
    "One image at three sites",
)
CLAIMS = (
    "bread, milk and eggs at every site",
    "three lists, as each site's users made them",
    "pizza at every site",
    "every site says so: site2:2 beats site1:2 and site3:2, by rule 4",
    "50 left at site1, 49 at site2",
    "0 at both sites",
    "both sites know which pair was refused, and where",
    "debian at site1 and at site2, and each is its own",
    "the server is at site1, and was made from the image of site2",
    "fedora at every site, under an id of its own that nobody sees",
    "both changes at every site",
)
CLAIMS_OF_REDIS = (
    "7 at every site",
    "three numbers: 29, 20, -5",
    "29 at every site",
    "every site says so: site1:2 beats site2:2 and site3:1, by rule 4",
)
HINT, PROMPT = "Enter to go on", "demo> "
WORDS = (
    ("cut site3", "cut: site1 and site3, site2 and site3"),
    ("cut", "cut: site1 and site2, site1 and site3, site2 and site3"),
    ("heal", "every site reaches every other"),
    ("cut site9", "there is no site 'site9' here"),
    ("dance", "not understood. Type here: cut (no site"),
    ("", "Type here: cut (no site"),
)


def test_a_visitor_sees_the_story_and_plays_on(tmp_path: Path) -> None:
    with Visitor(tmp_path) as visitor:
        while visitor.await_text(HINT, PROMPT) == HINT:
            visitor.type("")
        story = visitor.text
        _configurations_are_right(tmp_path)
        for word, expected in WORDS:
            visitor.type(word)
            visitor.await_text(expected)
            visitor.await_text(PROMPT)
        visitor.type("quit")
        assert visitor.end() == 0
    assert visitor.text.rstrip().endswith("The sites are stopped, and nothing of them is left.")
    assert "\x1b[" in visitor.seen
    assert "Traceback" not in visitor.text
    places = [story.index(act) for act in ACTS]
    assert places == sorted(places)
    for claim in (*CLAIMS, *(CLAIMS_OF_REDIS if shutil.which("redis-server") else ())):
        assert f"✓ {claim}" in story
    nothing_is_left(tmp_path)


def _configurations_are_right(folder: Path) -> None:
    found = list(folder.glob("cheops-demo-*/site*/site.yaml"))
    assert len(found) == 3
    for config in found:
        ran = run_here("config", "check", str(config))
        assert ran.code == 0, ran.err
        assert "warning" not in (ran.out + ran.err).lower()


def test_the_tour_of_scope_lang_starts_nothing() -> None:
    ran = run_here("demo", "--tour")
    assert ran.code == 0
    assert "means  paris ; lyon ; nantes" in ran.out
    assert "Did you mean 'lyon'?" in ran.err
    assert re.search(r"--sites \S+demo_sites.yaml$", ran.out, re.MULTILINE)
