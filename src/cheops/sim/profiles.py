"""What a simulated history may hold. Numbers are probabilities, or counts per history."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    name: str
    operations: int = 40
    resources: int = 2
    duration_ms: int = 12_000
    delay_ms: tuple[int, int] = (1, 60)
    loss: float = 0.05
    duplication: float = 0.05
    long_delay: float = 0.05  # far longer than usual: reordering
    partitions: int = 4
    one_way_cuts: int = 2
    crashes: int = 4
    crash_between_effects: float = 0.002
    skew_ms: int = 5_000
    clock_jumps: int = 3
    trouble: float = 0.03  # the application is not there, or does not answer
    bad_command: float = 0.05  # fails wherever it is run
    deletes: float = 0.02
    forces: float = 0.02
    site_changes: float = 0.03
    matrix_changes: float = 0.02
    other_rules: bool = False  # matrices that differ in more than their hash
    rebirths: int = 0
    policed: bool = False  # with the policies that count where sites have identities


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("hostile"),
        Profile(
            "calm", loss=0, duplication=0, long_delay=0, partitions=0, one_way_cuts=0, crashes=0,
            crash_between_effects=0, skew_ms=0, clock_jumps=0, trouble=0,
        ),
        Profile(
            "network", crashes=0, crash_between_effects=0, trouble=0, loss=0.2, duplication=0.2, partitions=8,
        ),
        Profile("crashes", crashes=12, crash_between_effects=0.01, trouble=0.1, partitions=1),
        Profile("long", operations=250, duration_ms=40_000, resources=3, partitions=10, crashes=10),
        Profile("moving", site_changes=0.15, rebirths=1, deletes=0.05),
        Profile("rules", matrix_changes=0.15, other_rules=True),
        Profile("policed", policed=True, site_changes=0.25, partitions=8, matrix_changes=0.05),
    )
}  # fmt: skip
