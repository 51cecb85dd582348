"""What a worker of a campaign does, and the whole table of targets."""

import time
import traceback

from tests.security.fuzz.campaign import Finding, campaign
from tests.security.fuzz.gossip import GOSSIP
from tests.security.fuzz.identities import IDENTITIES
from tests.security.fuzz.peers import PEERS
from tests.security.fuzz.serving import SERVING
from tests.security.fuzz.targets import PURE

TARGETS = {**PURE, **PEERS, **GOSSIP, **IDENTITIES, **SERVING}
Piece = tuple[str, int, int, int]  # target, seed, first input, and the one after the last


def work(piece: Piece) -> tuple[str, int, float, list[str]]:
    """How many inputs were tried, in which time of the processor, and what was found."""
    name, seed, first, last = piece
    began_s = time.process_time()
    findings = campaign(name, TARGETS[name], seed, range(first, last))
    return name, last - first, time.process_time() - began_s, [_told(one) for one in findings]


def _told(finding: Finding) -> str:
    trace = traceback.extract_tb(finding.error.__traceback__)[-4:]
    return "\n".join([str(finding), *(f"    {one.filename}:{one.lineno} {one.name}: {one.line}" for one in trace)])
