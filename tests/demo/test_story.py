"""`cheops demo` on a terminal: the story with pauses, then the sites stay up and the network can be cut."""

import re
import shutil
from pathlib import Path

from tests.demo.terminal import Visitor, nothing_is_left
from tests.support.command import run_here

ACTS = (
    "Three sites, one application",
    "The network is cut, and every site keeps working",
    "The network is back",
    "Which operation won, and why",
    "A stock that never falls below zero",
    "HTTP services, unchanged",
    "One image, replicated at three sites",
)
CLAIMS = (
    "bread, milk and eggs at every site",
    "three lists, one per site",
    "pizza at every site",
    "every site agrees: site2:2 supersedes site1:2 and site3:2, by rule 4",
    "50 left at site1, 49 at site2",
    "0 at both sites",
    "both sites report which pair was refused, and where",
    "site1 and site2 each have a debian of their own",
    "the server is at site1, made from the image of site2",
    "every site has fedora, with a local id that clients do not see",
    "both changes are at every site",
)
CLAIMS_OF_REDIS = (
    "7 at every site",
    "three numbers: 29, 20, -5",
    "29 at every site",
    "every site agrees: site1:2 supersedes site2:2 and site3:1, by rule 4",
)
HINT, PROMPT = "Press Enter to continue", "demo> "
WORDS = (
    ("cut site3", "cut: site1 and site3, site2 and site3"),
    ("cut", "cut: site1 and site2, site1 and site3, site2 and site3"),
    ("heal", "all sites are connected"),
    ("cut site9", "the demo has no site 'site9'"),
    ("dance", "unknown command. Type here: cut (all sites"),
    ("", "Type here: cut (all sites"),
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
    assert visitor.text.rstrip().endswith("The sites are stopped; nothing is left behind.")
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
