"""Which commands `show` runs: the type's `read`, what `show` lists, and without that whatever is allowed."""

import pytest

from cheops.client import Agent, AgentError
from tests.agent.rig import MakeRig, RefusedByAgentError, Rig
from tests.agent.types import TALLY

# `touch` writes and is allowed to operations, `wc` only reads.
CAREFUL = {**TALLY, "shell": False, "read": "cat __ID__", "allow": ["touch *"], "show": ["wc -c *"]}
STRICT = {**CAREFUL, "show": []}
OPEN = {key: value for key, value in CAREFUL.items() if key != "show"}


def made(make_rig: MakeRig, type_: dict[str, object]) -> Rig:
    rig = make_rig({"t": type_}, "site1", "site2")
    rig.start()
    assert {line["Status"] for line in rig.exec("site1", "n", "set", "touch n")} == {"OK"}
    return rig


def refused(rig: Rig, command: str, sites: str = "") -> str:
    with pytest.raises(RefusedByAgentError) as caught:
        rig.show("site1", "n", command, sites)
    assert caught.value.status == 403
    return caught.value.detail


def test_a_command_that_is_only_allowed_to_operations_is_not_shown(make_rig: MakeRig) -> None:
    rig = made(make_rig, CAREFUL)
    assert {one["Status"] for one in rig.show("site1", "n").values()} == {"OK"}
    assert {one["Output"] for one in rig.show("site1", "n", "wc -c n").values()} == {"0 n\n"}
    assert refused(rig, "touch written-by-show") == (
        "the state is shown by the type's 'read', or by what its 'show' lists: the command 'touch "
        "written-by-show' is not allowed; the type allows: 'wc -c *'"
    )
    (elsewhere,) = rig.show("site1", "n", "touch written-by-show", "site2").values()
    assert (elsewhere["Status"], "is not allowed" in elsewhere["Output"]) == ("KO", True)
    with pytest.raises(AgentError, match="is not allowed"):
        Agent(rig.url("site1")).verify("n", "touch written-by-show")
    assert not [name for name in rig.names if (rig.folder(name) / "written-by-show").exists()]
    with pytest.raises(RefusedByAgentError, match="is not allowed"):
        rig.exec("site1", "n", "set", "wc -c n")


def test_an_empty_list_leaves_what_the_type_itself_reads_with(make_rig: MakeRig) -> None:
    rig = made(make_rig, STRICT)
    assert {one["Status"] for one in rig.show("site1", "n", "cat __ID__").values()} == {"OK"}
    assert "the type allows: none" in refused(rig, "wc -c n")


def test_without_a_list_every_allowed_command_may_be_run(make_rig: MakeRig) -> None:
    """As the original has it."""
    rig = made(make_rig, OPEN)
    assert {one["Status"] for one in rig.show("site1", "n", "touch m").values()} == {"OK"}
    assert "'wc -c n' is not allowed; the type allows: 'touch *'" in refused(rig, "wc -c n")
