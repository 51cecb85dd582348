"""What a configuration file says, and what holds where it says nothing."""

from pathlib import Path

import pytest

from cheops.config.address import Address
from cheops.config.command import CommandLimits, CommandSettings
from cheops.config.services import ServiceConfig
from cheops.config.site import HeartbeatConfig, SiteConfig, parse_site, read_site
from cheops.config.types import TypeConfig
from cheops.engine.settings import Limits, ResourceType
from cheops.errors import ClientError
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command

FULL = """
site: DC 1
listen: "[::]:8079"
advertise: HTTP://DC1.Example.org:8079/
data: /var/lib/cheops
peers:
  DC 1: http://dc1.example.org:8079
  no: https://10.0.0.2:443/
services:
  compute: {url: "http://127.0.0.1:8774/v2.1/"}
types:
  counter:
    matrix: matrices/counter.json
    read: redis-cli get __ID__
    reset: redis-cli set __ID__ 0
    checkpoint: {read: redis-cli --raw get __ID__, write: "redis-cli set __ID__ {state}", after: 8}
    on_error: notify-send 'something is wrong'
    parallel: yes
    allow: [redis-cli set * *, "redis-cli 'in crby' ..."]
    timeout: 1.5m
    max_output: 1MB
    cwd: work
    env: {PORT: 6379, EMPTY: ""}
    user: nobody
    limits: {cpu: 10s, memory: 1GiB, files: 256, processes: 64}
  default: {}
limits: {drafts: 5, idle: 1m, resend: 0.25s}
heartbeat: {every: 250ms, down_after: 2s}
"""


def read(folder: Path, text: str) -> SiteConfig:
    path = folder / "site.yaml"
    path.write_text(text, encoding="utf-8")
    return read_site(path)


def type_of(folder: Path, settings: str) -> TypeConfig:
    return read(folder, f"site: a\ntypes:\n  t: {settings}\n").types["t"]


def test_everything_that_is_written_is_taken(tmp_path: Path) -> None:
    (tmp_path / "matrices").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "matrices" / "counter.json").write_text(
        '{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}'
    )
    config = read(tmp_path, FULL)
    assert config.name == "DC 1"
    assert config.listen == Address("::", 8079)
    assert config.advertise == "http://dc1.example.org:8079"
    assert config.data == Path("/var/lib/cheops")
    assert config.peers == {"no": "https://10.0.0.2"}
    assert config.services == {"compute": ServiceConfig("compute", "http://127.0.0.1:8774/v2.1")}
    assert config.limits == Limits(drafts=5, idle_ms=60_000, resend_ms=250)
    assert config.heartbeat == HeartbeatConfig(0.25, 2.0)
    assert config.source == tmp_path / "site.yaml"
    assert list(config.types) == ["counter", "default"]
    counter = config.types["counter"]
    assert counter.matrix == Matrix([Entry("set", "set", Result.TAKE_ONE)])
    assert counter.read == "redis-cli get __ID__"
    assert counter.on_error == "notify-send 'something is wrong'"
    assert counter.command == CommandSettings(
        allow=("redis-cli set * *", "redis-cli 'in crby' ..."),
        timeout_s=90.0,
        max_output_bytes=1_000_000,
        cwd=tmp_path / "work",
        env={"PORT": "6379", "EMPTY": ""},
        user="nobody",
        limits=CommandLimits(10, 1024**3, 256, 64),
    )
    engine = counter.engine
    assert engine.name == "counter"
    assert engine.reset == Command("redis-cli set __ID__ 0")
    assert engine.on_error == Command("notify-send 'something is wrong'")
    assert engine.parallel is True
    assert engine.checkpoint is not None
    assert engine.checkpoint.read == Command("redis-cli --raw get __ID__")
    assert engine.checkpoint.write("29\n") == Command("redis-cli set __ID__ 29")
    assert engine.checkpoint.after == 8


def test_a_name_is_enough(tmp_path: Path) -> None:
    assert read(tmp_path, "site: no") == SiteConfig(
        "no",
        Address("127.0.0.1", 8079),
        "http://127.0.0.1:8079",
        tmp_path / "data",
        source=tmp_path / "site.yaml",
        warnings=("types: none is configured, so no command is allowed",),
    )


def test_a_site_with_services_alone_gives_no_warning(tmp_path: Path) -> None:
    assert read(tmp_path, "site: a\nservices: {image: {url: http://127.0.0.1:9292}}").warnings == ()


def test_a_type_without_settings_has_the_defaults(tmp_path: Path) -> None:
    type_ = type_of(tmp_path, "{}")
    assert type_ == TypeConfig("t", Matrix(), command=CommandSettings())
    assert type_.engine == ResourceType("t")


def test_the_engine_gets_its_part(tmp_path: Path) -> None:
    config = read(tmp_path, "site: a\ntypes: {x: {reset: zero}, y: {parallel: true}}\nlimits: {batch: 3}")
    assert config.engine.type_named("x") == ResourceType("x", reset=Command("zero"))
    assert config.engine.type_named("y") == ResourceType("y", parallel=True)
    assert config.engine.limits == Limits(batch=3)


def test_a_resource_without_a_type_gets_the_default_one(tmp_path: Path) -> None:
    config = read(tmp_path, "site: a\ntypes: {default: {reset: zero}, counter: {}}")
    assert config.type_named(None) is config.type_named("") is config.types["default"]
    assert config.type_named("counter") is config.types["counter"]
    with pytest.raises(ClientError) as refused:
        config.type_named("conter")
    assert str(refused.value) == (
        "unknown resource type 'conter'; did you mean 'counter'? Types of a: counter, default"
    )
    with pytest.raises(ClientError, match=r"unknown resource type 'default'\. Types of b: none"):
        read(tmp_path, "site: b").type_named(None)


def test_paths_start_at_the_file_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "matrix.yaml").write_text("matrix: [{before: a, after: a, result: take-one}]")
    (tmp_path / "conf" / "peers.yaml").write_text("b: http://127.0.0.1:1\na: http://127.0.0.1:8079")
    (tmp_path / "conf" / "site.yaml").write_text(
        "site: a\npeers: peers.yaml\ndata: ../kept\ntypes: {t: {matrix: matrix.yaml, cwd: ., reset: zero}}"
    )
    monkeypatch.chdir(tmp_path)
    config = read_site(Path("conf/site.yaml"))
    assert config.data == tmp_path / "conf/../kept"
    assert config.peers == {"b": "http://127.0.0.1:1"}
    assert config.types["t"].matrix.types == ("a",)
    assert config.types["t"].command.cwd == tmp_path / "conf"
    assert config.source == Path("conf/site.yaml")


def test_the_home_directory_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert read(tmp_path, "site: a\ndata: ~/kept").data == tmp_path / "home" / "kept"


@pytest.mark.parametrize(
    "matrix",
    [
        "[{before: set, after: set, result: take-one}]",
        "[{Before: set, After: set, Result: take-one}]",
        "{matrix: [{before: set, after: set, result: take-one}], types: [set]}",
        '{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}',
    ],
)
def test_a_matrix_may_stand_in_the_file_in_every_form(tmp_path: Path, matrix: str) -> None:
    assert type_of(tmp_path, f"{{matrix: {matrix}}}").matrix == Matrix([Entry("set", "set", Result.TAKE_ONE)])


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("10.0.0.1:80", None, "http://10.0.0.1"),
        ("[::1]:8079", None, "http://[::1]:8079"),
        ("LOCALHOST:8079", None, "http://localhost:8079"),
        ("0.0.0.0:8079", None, "http://127.0.0.1:8079"),
        ("[::]:8079", None, "http://[::1]:8079"),
        ("0.0.0.0:8079", "https://edge.example.org", "https://edge.example.org"),
    ],
)
def test_the_url_for_others(tmp_path: Path, listen: str, advertise: str | None, expected: str) -> None:
    more = f"\nadvertise: {advertise}" if advertise else ""
    assert read(tmp_path, f'site: a\nlisten: "{listen}"{more}').advertise == expected


def test_a_wildcard_takes_its_address_from_the_shared_list(tmp_path: Path) -> None:
    config = read(tmp_path, "site: a\nlisten: 0.0.0.0:1\npeers: {b: http://b:1, a: http://a:1}")
    assert config.advertise == "http://a:1"
    assert config.peers == {"b": "http://b:1"}


def test_a_text_is_read_as_if_it_stood_in_the_file(tmp_path: Path) -> None:
    assert parse_site("site: a", tmp_path / "site.yaml") == read(tmp_path, "site: a")


FINE = "matrix: [{before: s, after: s, result: take-one}], allow: [x]"
ORDERED = "matrix: [{before: s, after: s, result: take-one}, {before: s, after: a, result: take-both-keep-order}]"
NO_RESET = (
    "there is no 'reset': if operations arrive out of order, and no operation before them replaces everything, "
    "the resource is marked order-not-enforced"
)
DOUBTFUL = [
    (f"{{{FINE}}}", []),
    (
        "{reset: zero}",
        [
            "no command is allowed; list patterns under 'allow'",
            "there is no matrix, so all operations are ordered and none replaces another",
        ],
    ),
    (
        "{allow: [x]}",
        ["there is no matrix, so all operations are ordered and none replaces another", NO_RESET],
    ),
    (f"{{{ORDERED}, allow: [x]}}", [NO_RESET]),
    (f"{{{ORDERED}, allow: [x], reset: zero}}", []),
    (
        f"{{{FINE}, read: r, checkpoint: {{write: 'w {{state}}'}}, max_output: 128KiB}}",
        [
            (
                "'max_output' is more than a checkpoint can write: a state is one word of a command line, "
                "which takes less than 128KiB"
            )
        ],
    ),
    (f"{{{FINE}, reset: 'echo 0 > x'}}", ["'>' in 'reset' is a plain word without 'shell: true'"]),
    (f"{{{FINE}, reset: 'echo 0 > x', shell: true}}", []),
]


@pytest.mark.parametrize(("settings", "warnings"), DOUBTFUL)
def test_doubtful_types_are_accepted_with_a_warning(tmp_path: Path, settings: str, warnings: list[str]) -> None:
    config = read(tmp_path, f"site: a\ntypes: {{t: {settings}}}")
    assert list(config.warnings) == [f"types.t: {warning}" for warning in warnings]


def test_what_the_machine_lacks_is_a_problem_until_it_is_there(tmp_path: Path) -> None:
    config = read(tmp_path, f"site: a\nsecurity: none\ntypes: {{t: {{{FINE}, cwd: made, user: nobody-here}}}}")
    lacks_user = "types.t: there is no user 'nobody-here' on this machine: create it, or correct 'user'"
    assert list(config.problems()) == [f"types.t: the directory of 'cwd' does not exist: {tmp_path}/made", lacks_user]
    (tmp_path / "made").mkdir()
    assert list(config.problems()) == [lacks_user]
    assert config == read_site(config.source)  # what was read has not changed


def test_an_address_that_peers_cannot_reach_is_doubtful(tmp_path: Path) -> None:
    types = f"types: {{t: {{{FINE}}}}}"
    assert read(tmp_path, f"site: a\npeers: {{b: http://10.0.0.2, c: http://localhost}}\n{types}").warnings == (
        (
            "advertise: http://127.0.0.1:8079 is this machine only, but b cannot be on it; "
            "set 'listen' or 'advertise' to an address that peers reach"
        ),
    )
    assert read(tmp_path, f"site: a\npeers: {{b: http://127.0.0.1}}\n{types}").warnings == ()
