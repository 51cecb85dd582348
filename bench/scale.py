"""What an operation costs at 3 to 50 sites: messages and bytes, counted in a simulated world without faults."""

from collections.abc import Iterator

from bench.report import Section
from cheops.sim.traffic import BYTES_PER_SITE, MESSAGES_PER_SITE, measure

_SITES = (3, 10, 20, 50)
_OPERATIONS = 3
_OUTPUT_LINES = 8
# Bytes, with outputs, and signed; counted at 8fcd3ab in the same way.
_BEFORE = {
    3: (2_989, 5_015, 4_114),
    10: (18_694, 48_140, 33_744),
    20: (58_586, 184_018, 119_569),
    50: (319_932, 1_142_703, 726_997),
}


def run() -> Iterator[Section]:
    columns = ("sites", "messages", "budget", "bytes", "budget", "before", "with outputs", "before", "signed", "before")
    about = (
        "One operation at a resource of so many sites, submitted at one of them, with links of 1 to 5 ms.\n"
        "It is counted in the simulator with the limits of an agent, so it depends on no machine. Bytes are those\n"
        "of the messages as agents send them, without TLS; origins and times are as long as those of agents. With\n"
        "outputs, each site prints 520 characters that hardly compress. Signed, each site gets two signatures of\n"
        "each other one. Before, each site got the reports, replies and outputs of all others in full\n"
        "([ADR 0030](adr/0030-short-messages.md))."
    )
    rows = []
    for sites in _SITES:
        bare = measure(sites, _OPERATIONS)
        printing = measure(sites, _OPERATIONS, output_lines=_OUTPUT_LINES)
        signed = measure(sites, _OPERATIONS, signed=True)
        counts = [one.bytes for one in (bare, printing, signed)]
        before = _BEFORE[sites]
        row = [f"{sites}", f"{bare.messages:.0f}", f"{MESSAGES_PER_SITE * sites}", f"{counts[0]:,.0f}"]
        row += [f"{BYTES_PER_SITE * sites:,}", f"{before[0]:,}", f"{counts[1]:,.0f}", f"{before[1]:,}"]
        rows.append((*row, f"{counts[2]:,.0f}", f"{before[2]:,}"))
    latest_ms = measure(_SITES[-1], 1).converged_ms
    about += f" At {_SITES[-1]} sites, all know the outcome after {latest_ms:.0f} ms of virtual time."
    yield Section("scale", columns, tuple(rows), title="Many sites", about=about)
