"""Files of users: every complaint names the file, the line, the place and the remedy."""

from pathlib import Path

import pytest

from cheops.cli.sites_file import read_sites
from cheops.documents import MAX_BYTES, DocumentError
from cheops.scope import SiteInfo

GOOD = """
here: DC 1
sites:
  DC 1:
    services: [compute, image]
    rtt_ms: {no: 8.5}
  no: {up: no}
  2: {}
"""


def test_a_sites_file_is_read_as_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text(GOOD)
    snapshot = read_sites(tmp_path / "sites.yaml")
    assert snapshot.here == "DC 1"
    assert list(snapshot.sites.values()) == [
        SiteInfo("DC 1", frozenset({"compute", "image"})),
        SiteInfo("no", up=False),
        SiteInfo("2"),
    ]
    assert snapshot.rtt_ms("no", "DC 1") == snapshot.rtt_ms("DC 1", "no") == 8.5
    assert snapshot.rtt_ms("no", "2") is None


BAD = [
    ("", "1: the file is empty"),
    ("sites: [a\n", "2: not YAML: expected ',' or ']', but got '<stream end>'"),
    ("sites:\n\ta: {}", "2: not YAML: found character '\\t' that cannot start any token"),
    ("sites: {a: {}}\x07", "1: not YAML: the character U+0007 is not allowed"),
    ("- a", "1: expected names with values, found a list"),
    ("site: {}", "1: site: unknown key; did you mean 'sites'? Known here: here, sites"),
    ("here: a", "1: 'sites' is missing"),
    ("sites: {}", "1: sites: no site is named"),
    ("sites:", "1: sites: expected names with values, found nothing"),
    ("sites:\n  a: {}\n  a: {}", "3: sites: 'a' is given twice"),
    ("sites:\n  a: {}\nhere: b", "3: here: unknown site 'b'; Sites of this file: a"),
    ("sites:\n  a:\n    services: compute", "3: sites.a.services: expected a list, found 'compute'"),
    ("sites:\n  a:\n    services: [[x]]", "3: sites.a.services[0]: expected a text, found a list"),
    ("sites:\n  a:\n    services: ['']", "3: sites.a.services[0]: a name cannot be empty"),
    ('sites:\n  "a\\tb": {}', "2: sites.a\tb: a name cannot hold the invisible character U+0009"),
    ("sites:\n  a:\n    up: maybe", "3: sites.a.up: expected true or false, found 'maybe'"),
    (
        "sites:\n  a:\n    rtt_ms: {a: 1}",
        "3: sites.a.rtt_ms.a: a site is at no distance from itself; leave this out",
    ),
    ("sites:\n  a:\n    rtt_ms: {b: 1}", "3: sites.a.rtt_ms.b: unknown site 'b'; Sites of this file: a"),
    ("sites:\n  a: {rtt_ms: {b: 8ms}}\n  b: {}", "2: sites.a.rtt_ms.b: expected a number, found '8ms'"),
    ("sites:\n  a: {rtt_ms: {b: 1:30}}\n  b: {}", "2: sites.a.rtt_ms.b: expected a number, found '1:30'"),
    ("sites:\n  a: {rtt_ms: {b: .inf}}\n  b: {}", "2: sites.a.rtt_ms.b: expected a number, found '.inf'"),
    (
        "sites:\n  a: {rtt_ms: {b: -1}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number of at least 0, found '-1'",
    ),
    (
        "sites:\n  a: {rtt_ms: {b: 1}}\n  b: {rtt_ms: {a: 2}}",
        "3: sites.b.rtt_ms.a: the opposite direction says 1 ms; give it once",
    ),
    ("[" * 100_000, " not accepted: it is nested too deeply"),
    ("a: &a [*a]\nsites: *a", "1: a: unknown key; Known here: here, sites"),
]


@pytest.mark.parametrize(("text", "complaint"), BAD, ids=[complaint for _, complaint in BAD])
def test_a_bad_sites_file_is_refused_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as refused:
        read_sites(path)
    assert str(refused.value) == f"{path}:{complaint}"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"a: b\nc: \xe9")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, complaint in {
        "missing": ": no such file or directory",
        ".": ": is a directory",
        "latin1": ":2: this is not UTF-8 text",
        "large": ": the file is larger than 4 MiB",
    }.items():
        with pytest.raises(DocumentError) as refused:
            read_sites(tmp_path / name)
        assert str(refused.value) == f"{tmp_path / name}{complaint}"
