"""Files of users: every error message gives the file, the line, the key and what to do."""

from pathlib import Path

import pytest

from cheops.cli.scope import read_sites
from cheops.scope import SiteInfo
from cheops.yaml_file import MAX_BYTES, YamlFileError

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
    ("- a", "1: expected names with values, found a list"),
    ("site: {}", "1: site: unknown key; did you mean 'sites'? Known here: here, sites"),
    ("here: a", "1: 'sites' is missing"),
    ("sites: {}", "1: sites: no sites are named"),
    ("sites:", "1: sites: expected names with values, found nothing"),
    ("sites:\n  a: {}\n  a: {}", "3: sites: 'a' is given twice"),
    ("sites:\n  a: {}\nhere: b", "3: here: unknown site 'b'; Sites of this file: a"),
    ("sites:\n  a:\n    services: compute", "3: sites.a.services: expected a list, found 'compute'"),
    ("sites:\n  a:\n    services: [[x]]", "3: sites.a.services[0]: expected a text, found a list"),
    ("sites:\n  a:\n    services: ['']", "3: sites.a.services[0]: a name cannot be empty"),
    ('sites:\n  "a\\tb": {}', "2: sites.a�b: a name cannot hold the invisible character U+0009"),
    ("sites:\n  a:\n    up: maybe", "3: sites.a.up: expected true or false (without quotes), found 'maybe'"),
    (
        "sites:\n  a:\n    rtt_ms: {a: 1}",
        "3: sites.a.rtt_ms.a: a site has no distance to itself; remove this",
    ),
    ("sites:\n  a:\n    rtt_ms: {b: 1}", "3: sites.a.rtt_ms.b: unknown site 'b'; Sites of this file: a"),
    (
        "sites:\n  a: {rtt_ms: {b: 8ms}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number, such as 8 or 0.5, found '8ms'",
    ),
    (
        "sites:\n  a: {rtt_ms: {b: 1:30}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number, such as 8 or 0.5, found '1:30'",
    ),
    (
        "sites:\n  a: {rtt_ms: {b: .inf}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number, such as 8 or 0.5, found '.inf'",
    ),
    (
        "sites:\n  a: {rtt_ms: {b: -1}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number of at least 0, found '-1'",
    ),
    (
        "sites:\n  a: {rtt_ms: {b: 1}}\n  b: {rtt_ms: {a: 2}}",
        "3: sites.b.rtt_ms.a: the opposite direction says 1 ms; give it once",
    ),
    ("[" * 100_000, "1: nested more than 32 levels deep"),
    ("sites:\n  a: {up: 'true'}", "2: sites.a.up: expected true or false (without quotes), found 'true'"),
    (
        "sites:\n  a: {up: !!bool maybe}",
        "2: sites.a.up: expected true or false (without quotes), found 'maybe'",
    ),
    ("sites:\n  a: {up: !!bool [x]}", "2: sites.a.up: expected true or false (without quotes), found a list"),
    (
        "sites:\n  a: {rtt_ms: {b: !!int {}}}\n  b: {}",
        "2: sites.a.rtt_ms.b: expected a number, such as 8 or 0.5, found names with values",
    ),
    ("sites:\n  <<: {up: true}", "2: sites: merge keys (<<) are not supported"),
    (
        'sites:\n  a: {up: "\\e[31mX\\a"}',
        "2: sites.a.up: expected true or false (without quotes), found '�[31mX�'",
    ),
    ("a: &a [*a]\nsites: *a", "1: a: unknown key. Known here: here, sites"),
]


@pytest.mark.parametrize(("text", "complaint"), BAD, ids=[complaint for _, complaint in BAD])
def test_a_bad_sites_file_is_refused_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(text)
    with pytest.raises(YamlFileError) as refused:
        read_sites(path)
    assert str(refused.value) == f"{path}:{complaint}"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("sites: [a\n", ":2: not YAML: "),
        ("sites:\n\ta: {}", ":2: not YAML: "),
        ("sites: {a: {}}\x07", ": not YAML: "),
        ('sites: {"\\UFFFFFFFF": {}}', "not YAML: "),
        (f"%YAML 1.{'1' * 5_000}\n---\nsites: {{}}", "not YAML: "),
    ],
)
def test_what_is_not_yaml_is_refused(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(text)
    with pytest.raises(YamlFileError) as refused:
        read_sites(path)
    assert where in str(refused.value)
    assert len(str(refused.value)) < 300


def test_scientific_notation_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text("sites:\n  a: {rtt_ms: {b: 1e1}}\n  b: {}")
    assert read_sites(tmp_path / "sites.yaml").rtt_ms("a", "b") == 10


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"a: b\nc: \xe9")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, complaint in {
        "missing": ": no such file or directory",
        ".": ": is a directory",
        "latin1": ":2: this is not UTF-8 text",
        "large": ": the file is larger than 1 MiB",
    }.items():
        with pytest.raises(YamlFileError) as refused:
            read_sites(tmp_path / name)
        assert str(refused.value) == f"{tmp_path / name}{complaint}"
    with pytest.raises(YamlFileError, match="/dev/zero: the file is larger than 1 MiB"):
        read_sites(Path("/dev/zero"))
