"""Agents as processes: load, crashes, restarts while cut off, files, and requests that cannot be right."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.agent.rig import MakeRig, RefusedByAgentError, Rig, until
from tests.agent.types import FILE, TALLY
from tests.support.command import run_new_python, run_process
from tests.wan import Wan

ADD = "printf x >> __ID__"  # one byte per increment, so the length is the count


def counts(rig: Rig, id_: str, at: str = "site1") -> list[str]:
    return [shown["Output"].strip() for shown in rig.show(at, id_).values()]


def all_count(rig: Rig, id_: str, expected: int) -> None:
    until(lambda: counts(rig, id_) == [str(expected)] * len(rig.names), f"{id_}: {counts(rig, id_)}")


# -- clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resources", [1, 200], ids=["one-resource", "200-resources"])
def test_200_clients_at_once(make_rig: MakeRig, resources: int) -> None:
    rig = make_rig({"tally": TALLY})
    rig.start()
    rig.exec("site1", "n0", "inc", ADD)  # so that two sites do not make it at the same time

    def client(number: int) -> str:
        site, id_ = rig.names[number % 3], f"n{number % resources}"
        lines = rig.exec(site, id_, "inc", ADD, timeout=100)
        return " ".join(line["Status"] for line in lines)

    with ThreadPoolExecutor(200) as pool:
        assert set(pool.map(client, range(200))) == {"OK OK OK"}
    for number in (0, resources - 1):
        expected = 200 // resources + (1 if number == 0 else 0)
        all_count(rig, f"n{number}", expected)


def test_a_client_hears_of_a_site_that_has_not_answered(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1", "site2")
    rig.start("site1")
    lines = rig.exec("site1", "n", "inc", ADD, timeout=2)
    assert {line["Site"]: line["Status"] for line in lines} == {"site1": "OK", "site2": "TIMEOUT"}
    rig.start("site2")
    all_count(rig, "n", 1)


def test_a_site_that_is_not_involved_forwards(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY})
    rig.start()
    sites = "site2 & site3"
    for _ in range(2):  # the second time the resource is there
        lines = rig.exec("site1", "n", "inc", ADD, sites=sites)
        assert {line["Site"]: line["Status"] for line in lines} == {"site2": "OK", "site3": "OK"}
    assert counts(rig, "n", "site2") == ["2", "2"]
    assert not (rig.folder("site1") / "n").exists()


def test_files_come_along_and_are_kept_once(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig({"file": FILE})
    rig.start()
    recipe = tmp_path / "recipe.txt"
    recipe.write_bytes(b"a line\n" * 300_000)
    for _ in range(2):
        lines = rig.exec("site1", "out", "set", "cat {recipe.txt} > out", files={"recipe.txt": recipe})
        assert [line["Status"] for line in lines] == ["OK"] * 3
    for site in rig.names:
        assert (rig.folder(site) / "out").read_bytes() == recipe.read_bytes()
        assert len(list((rig.folder(site) / "data" / "files").iterdir())) == 1


# -- crashes -------------------------------------------------------------------------------------------------


def test_killed_under_load_and_restarted_while_cut_off(make_rig: MakeRig, wan: Wan) -> None:
    """Nothing that was acknowledged is lost, and nothing runs twice, by the count of every site."""
    rig = make_rig({"tally": TALLY}, wan=wan)
    rig.start()
    assert len(rig.exec("site2", "n", "set", "printf x > __ID__")) == 3
    acknowledged = _load_and_kill(rig, "site1", "n")
    wan.isolate("site1")
    rig.start("site1")
    unknown = _resolve_nothing(rig)
    alone = rig.exec_here("site1", "other", "inc", ADD)  # it serves while it is cut off
    assert alone["Status"] == "OK"
    wan.heal()
    assert rig.exec("site2", "n", "set", "printf done > __ID__", timeout=60)
    until(lambda: set(_contents(rig, "n")) == {"done"}, f"{_contents(rig, 'n')}")
    assert acknowledged >= 1
    assert not unknown


def _resolve_nothing(rig: Rig) -> list[str]:
    return [line for line in rig.log("site1").splitlines() if "Traceback" in line]


def _contents(rig: Rig, id_: str) -> list[str]:
    return [shown["Output"] for shown in rig.show("site2", id_, f"cat {id_}").values()]


def _load_and_kill(rig: Rig, site: str, id_: str) -> int:
    """Requests at a site until it is killed in the middle of them; gives how many were acknowledged."""

    def client(_number: int) -> int:
        try:
            return any(line["Status"] == "OK" for line in rig.exec(site, id_, "inc", ADD, timeout=5))
        except (OSError, RefusedByAgentError, ValueError):
            return 0
        except Exception as error:
            return 0 if "http" in type(error).__module__ else -1000

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(client, number) for number in range(200)]
        until(lambda: sum(future.done() for future in running) >= 20)
        rig.kill(site)
        return sum(future.result() for future in running)


def test_acknowledged_operations_survive_kill_9(make_rig: MakeRig) -> None:
    """Each operation has a name of its own, so it can be seen which are there, and how often.

    What ran when the agent was killed is UNKNOWN, and holds its resource until an operator looks; so each round has
    resources of its own.
    """
    rig = make_rig({"tally": TALLY}, "site1")
    acknowledged: list[str] = []
    for round_ in range(4):
        rig.start("site1")

        def client(number: int, round_: int = round_) -> str | None:
            name = f"{round_}-{number}"
            try:
                lines = rig.exec("site1", f"log{round_}-{number % 40}", "inc", f"echo {name} >> __ID__")
            except Exception:
                return None
            return name if [line["Status"] for line in lines] == ["OK"] else None

        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(client, number) for number in range(120)]
            until(lambda running=running: sum(future.done() for future in running) >= 30)  # type: ignore[misc]
            rig.kill("site1")
            acknowledged += [name for future in running if (name := future.result())]
    found = [line for path in rig.folder("site1").glob("log*-*") for line in path.read_text().split()]
    assert len(acknowledged) >= 4 * 25
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found)), "something ran twice"


def test_stops_in_order_and_starts_where_it_was(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1")
    rig.start()
    rig.exec("site1", "n", "inc", ADD)
    assert rig.stop("site1") == 0
    rig.start()
    rig.exec("site1", "n", "inc", ADD)
    assert counts(rig, "n") == ["2"]


def test_a_second_agent_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1")
    rig.start()
    ran = run_new_python("agent", "--config", str(rig.folder("site1") / "site.yaml"))
    assert ran.code == 1
    assert "cannot listen on 127.0.0.1" in ran.err
    assert "Is another agent running there?" in ran.err


# -- requests that cannot be right -----------------------------------------------------------------------


@pytest.fixture
def one(make_rig: MakeRig) -> Rig:
    rig = make_rig({"tally": {**TALLY, "timeout": "1s", "allow": ["..."]}}, "site1")
    rig.start()
    return rig


def refused(rig: Rig, path: str, fields: dict[str, str]) -> tuple[int, str]:
    with pytest.raises(RefusedByAgentError) as caught:
        rig.post("site1", path, fields)
    return caught.value.status, caught.value.detail


def test_what_is_wrong_is_told(one: Rig) -> None:
    good = {"command": "true", "sites": "site1", "type": "inc"}
    cases = [
        ("/exec/n", good | {"sites": "site1 & site9"}, "unknown site 'site9'"),
        ("/exec/n", good | {"sites": "site1 &"}, "expected a site"),
        ("/exec/n", good | {"sites": ""}, "the field 'sites' is missing"),
        ("/exec/n", good | {"command": ""}, "the field 'command' is missing"),
        ("/exec/n", good | {"type": ""}, "the field 'type' is missing"),
        ("/exec/n", good | {"type": "!force"}, "begins with a reserved sign"),
        ("/exec/n", good | {"timeout": "soon"}, "'timeout' is a number of seconds"),
        ("/exec/n", good | {"config": '{"ResolutionMatrix": [{"Before": "a"}]}'}, "'After' is missing"),
        (
            "/exec/n",
            good | {"config": '{"ResolutionMatrix": [{"Before": "a", "After": "b", "Result": "x"}]}'},
            "x",
        ),
        ("/exec/n", good | {"config": "{"}, "config:2: not YAML"),
        ("/exec/n", good | {"resource-type": "tailly"}, "did you mean 'tally'"),
        ("/exec/%20", good, "must not be empty"),
        ("/exec/" + "n" * 300, good, "at most 256"),
        ("/show/never", {"command": "true"}, "no resource 'never' is known at site1; give its sites"),
    ]
    for path, fields, expected in cases:
        status, detail = refused(one, path, fields)
        assert status in (400, 409), (fields, status, detail)
        assert expected in detail, (fields, detail)
    assert one.exec("site1", "n", "inc", "true")[0]["Status"] == "OK", "it is unharmed"


def test_bodies_that_are_no_forms_are_told(one: Rig) -> None:
    for body, kind in ((b"{}", "application/json"), (b"--x\r\nrubbish", "multipart/form-data; boundary=x")):
        with pytest.raises(RefusedByAgentError) as caught:
            one.request("site1", "POST", "/exec/n", body, {"Content-Type": kind})
        assert caught.value.status == 400
    assert one.exec("site1", "n", "inc", "true")[0]["Status"] == "OK"


def test_commands_that_misbehave(one: Rig) -> None:
    flood = one.exec("site1", "flood", "set", "head -c 100000000 /dev/zero | tr '\\0' x")[0]
    assert flood["Status"] == "OK"
    assert "more bytes of output were dropped" in flood["Output"]
    assert len(flood["Output"]) < 70_000
    odd = one.exec("site1", "odd", "set", "printf 'a\\377b'")[0]
    assert odd["Output"] == "a\ufffdb"
    forks = one.exec("site1", "forks", "set", "setsid sleep 1013 & echo away")[0]
    assert forks["Output"].strip() == "away"
    endless = one.exec("site1", "endless", "set", "sleep 1013", timeout=2.5)[0]
    assert endless["Status"] == "TIMEOUT", "a replace operation that timed out is run again, and again"
    left = subprocess.run(["pgrep", "-fx", "sleep 1013"], capture_output=True, text=True, check=False).stdout
    assert len(left.split()) <= 1, "at most the attempt that is under way"


def test_a_command_that_is_not_allowed_is_refused_before_it_is_kept(make_rig: MakeRig) -> None:
    rig = make_rig({"safe": {**TALLY, "shell": False, "allow": ["touch __ID__"]}}, "site1")
    rig.start()
    status, detail = refused(rig, "/exec/n", {"command": "rm -rf /", "sites": "site1", "type": "set"})
    assert status == 403
    assert "'rm -rf /' is not allowed; the type allows: 'touch __ID__'" in detail


def test_rubbish_from_peers_is_refused(one: Rig) -> None:
    for path, body in (
        ("/peer/heartbeat", b"{}"),
        ("/peer/messages", msgspec.msgpack.encode(["x", []])),
        ("/peer/messages", b"x"),
        ("/peer/messages", b"\xff"),
        ("/peer/show", b"[]"),
        ("/peer/show", b"{"),
    ):
        with pytest.raises(RefusedByAgentError) as caught:
            one.request("site1", "POST", path, body)
        assert 400 <= caught.value.status < 500, (path, body, caught.value)
    # A message that cannot be read costs that message alone: others in the same request are taken.
    one.request(
        "site1", "POST", "/peer/messages", msgspec.msgpack.encode(["x", [b"{}", b"\xff"], [[{}, [0, 1, 7], [], []]]])
    )
    metrics = one.request("site1", "GET", "/metrics").decode()
    assert re.search(r'^cheops_refused_total\{reason="[a-z ]+",who="x"\} 3', metrics, re.MULTILINE), metrics
    assert "Traceback" not in one.log("site1")


# -- starting ----------------------------------------------------------------------------------------------


def test_a_broken_configuration_is_told_with_its_place(tmp_path: Path) -> None:
    config = tmp_path / "site.yaml"
    config.write_text("site: site1\nlisten: 127.0.0.1:99999\n")
    ran = run_process("agent", "--config", str(config))
    assert ran.code == 1
    assert f"{config}:2: listen" in ran.err


def test_a_store_of_another_site_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1")
    rig.start()
    rig.stop("site1")
    config = rig.folder("site1") / "site.yaml"
    config.write_text(config.read_text().replace("site1", "another"))
    ran = run_process("agent", "--config", str(config))
    assert ran.code == 1
    assert "is the store of site 'site1', not of 'another'" in ran.err


def test_the_command_line_speaks_to_the_agent(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig({"tally": TALLY}, "site1", "site2")
    rig.start()
    env = {"CHEOPS_URL": rig.url("site1"), "PATH": "/usr/bin:/bin"}
    sites = "site1 & site2"
    ran = run_process(*_exec("n", sites, "inc", "printf x >> __ID__; echo hello"), env=env)
    assert (ran.code, sorted(ran.out.split("\n"))) == (
        0,
        ["", "OK      site1  hello", "OK      site2  hello"],
    )
    ran = run_process("show", "--id", "n", env=env)
    assert ran.out.splitlines()[1].split() == ["site1", "OK", "1"]
    ran = run_process(*_exec("n", sites, "inc", "exit 7"), "-o", "json", env=env)
    assert ran.code == 1
    assert json.loads(ran.out)["answers"][0]["detail"] == "exit code 7"
    words = tmp_path / "words.txt"
    words.write_text("from a file\n")
    ran = run_process(*_exec("m", sites, "set", f"cat {{{words}}} > __ID__"), env=env)
    assert ran.code == 0
    assert (rig.folder("site2") / "m").read_text() == "from a file\n"
    rig.kill("site2")
    ran = run_process(*_exec("n", sites, "inc", "true"), "--timeout", "0.5", env=env)
    assert ran.code == 3
    assert "TIMEOUT site2" in ran.out
    ran = run_process("show", "--id", "n", env={**env, "CHEOPS_URL": "http://127.0.0.1:1"})
    assert ran.code == 1
    assert "Is it running ('cheops agent')?" in ran.err


def _exec(id_: str, sites: str, type_: str, command: str) -> list[str]:
    return ["exec", "--id", id_, "--sites", sites, "--type", type_, "--command", command]
