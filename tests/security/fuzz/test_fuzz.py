"""A fixed budget of hostile inputs for every parser; `make soak` runs a million. See targets.py for the table."""

import json
import random
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cheops.peers import intake
from cheops.peers.proofs import CertificateProofs
from tests.security.fuzz import __main__ as fuzz_command
from tests.security.fuzz.campaign import campaign, made_input, shares, tried
from tests.security.fuzz.grammars import GRAMMARS
from tests.security.fuzz.mutator import MAX_BYTES, mutated
from tests.security.fuzz.work import TARGETS

# Starlette leaves the file of a part that was cut short to the garbage collector, which closes it.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")
SEED = 20_261_116
INPUTS = 6_000  # in all
SHARES = shares(TARGETS, INPUTS)
MOST_MEMORY = 24 * 1024 * 1024  # for one input of at most MAX_BYTES


@pytest.mark.parametrize("name", TARGETS)
def test_only_documented_errors_come_out(name: str) -> None:
    findings = campaign(name, TARGETS[name], SEED, range(SHARES[name]), most=1)
    assert not findings, str(findings[0])


@pytest.mark.parametrize("name", GRAMMARS)
def test_nor_of_what_grammars_make(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
    @given(GRAMMARS[name], st.integers(0, 3))
    def check(data: bytes, changes: int) -> None:
        if changes:
            data = mutated((data,), target.tokens, random.Random(changes))  # noqa: S311 - the same each time
        error = tried(target, data)
        assert error is None, f"{error!r} for {data!r}"

    check()


def _large(name: str) -> list[bytes]:
    """What is as large as it may be: deep nesting, one sample again and again, one long anything."""
    target = TARGETS[name]
    most = target.most_bytes
    whole = [(target.seeds[0] * (most // max(1, len(target.seeds[0])) + 1))[:most]] if name != "gateway" else []
    openers = [(opener * most)[:most] for opener in (b"[", b'"', b"-1,", b"&a [*a,")]
    return [*whole, *openers, *((target.seeds[0][:20] + odd * most)[:most] for odd in (b"9", b"{a,"))]


@pytest.mark.parametrize("name", TARGETS)
def test_memory_stays_in_proportion(name: str) -> None:
    target = TARGETS[name]
    tried(target, target.seeds[0])  # what is made once is not counted
    tracemalloc.start()
    try:
        for data in _large(name):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            error = tried(target, data)
            _, peak = tracemalloc.get_traced_memory()
            assert error is None, f"{error!r} for {data[:100]!r} ({len(data)} bytes)"
            assert peak - before < MOST_MEMORY, f"{peak - before:,} bytes for {data[:100]!r} ({len(data)} bytes)"
    finally:
        tracemalloc.stop()


def test_an_input_is_known_by_its_number() -> None:
    target = TARGETS["document"]
    again = [made_input(target, "document", 7, number) for number in (50, 51)]
    assert again == [made_input(target, "document", 7, number) for number in (50, 51)]
    assert again != [made_input(target, "document", 8, number) for number in (50, 51)]
    assert all(len(made_input(target, "document", 7, number)) <= MAX_BYTES for number in range(200))


def test_the_command_runs_workers_and_repeats_one_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--seed", "5", "--target", "token"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.fuzz", *asked, "--inputs", "60", "--jobs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "60 inputs with seed 5" in done.stdout
    assert "0 findings" in done.stdout
    monkeypatch.setattr(sys, "argv", ["fuzz", *asked, "--only", "40"])
    assert fuzz_command.main() == 0
    assert "refused, as it should be" in capsys.readouterr().out


def test_a_finding_is_told_so_that_it_can_be_repeated() -> None:
    target = TARGETS["api-body"]
    broken = type(target)(json.loads, target.seeds, (), target.tokens)
    (finding,) = campaign("api-body", broken, 3, range(2_000), most=1)
    assert f"--target api-body --seed 3 --only {finding.number}" in str(finding)
    assert tried(broken, made_input(broken, "api-body", 3, finding.number)) is not None


# -- faults that were there once, put back: the targets of hostile sites find them ----------------------------------


def found(name: str, inputs: int = 1_500) -> str:
    findings = campaign(name, TARGETS[name], SEED, range(inputs), most=1)
    assert findings, f"{name} does not find the fault"
    return str(findings[0])


def test_a_record_that_needs_no_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertificateProofs, "made_ms", lambda _self, _record: None)
    assert "HarmError" in found("peer-heartbeat")


def test_a_decision_that_needs_no_signature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertificateProofs, "check_decision", lambda _self, _decision: None)
    assert "nobody decided to forget" in found("peer-heartbeat")


def test_a_stamp_of_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "future_objection", lambda _document, _now_ms, _skew_ms: None)
    assert "into the future" in found("peer-message")


def test_an_operation_that_nobody_signed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_objections(_self: object, _sender: str, *_documents: object) -> dict[int, object]:
        return {}

    monkeypatch.setattr(intake.DocumentVerifier, "objections", no_objections)
    assert "HarmError" in found("peer-message")
