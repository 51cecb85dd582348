"""How much of a channel is on its way: little on a slow link, much on a fast one."""

import pytest

from cheops.peers.pace import Pace


class Link:
    """Carries so many bytes per second, and answers each PING when what was before it has arrived."""

    def __init__(self, bytes_per_s: float, delay_s: float = 0.02) -> None:
        self.pace = Pace()
        self.now_s = 0.0
        self.most = 0  # bytes that were on their way at a time
        self._rate = bytes_per_s
        self._delay_s = delay_s
        self._free_s = 0.0
        self._echoes: list[float] = []
        self._arrivals: list[tuple[float, int]] = []

    def send_all(self, size: int) -> None:
        """Write whenever there is room, in pieces of a channel."""
        while size > 0:
            while size > 0 and (room := self.pace.room):
                piece = min(room, size, 16 * 1024)
                size -= piece
                self._free_s = max(self._free_s, self.now_s) + piece / self._rate
                self._arrivals.append((self._free_s, piece))
                self.pace.wrote(piece)
                if self.pace.is_echo_due:
                    self.pace.asked(self.now_s)
                    self._echoes.append(self._free_s + self._delay_s)
            self._arrivals = [one for one in self._arrivals if one[0] > self.now_s]
            self.most = max(self.most, sum(piece for _, piece in self._arrivals))
            if not size:
                return
            assert self._echoes, "nothing would ever make room"
            self.now_s = self._echoes.pop(0)
            self.pace.answered(self.now_s)


def test_on_a_slow_link_little_is_ahead_of_what_is_urgent() -> None:
    link = Link(8_000)
    link.send_all(40_000)
    assert link.most <= 2.1 * 8_000  # at first the fastest round trip is not known; heartbeats wait for 3 s
    link.most = 0
    link.send_all(200_000)
    assert link.most <= 1.3 * 8_000
    assert link.now_s < 1.2 * 240_000 / 8_000  # the link is never idle for long


@pytest.mark.parametrize("delay_s", [0.001, 0.1, 0.6])
def test_a_fast_link_is_used(delay_s: float) -> None:
    link = Link(10_000_000, delay_s)
    link.send_all(100_000_000)
    assert link.now_s < 1.5 * (100_000_000 / 10_000_000) + 20 * delay_s


def test_a_pong_that_nobody_asked_for_makes_no_room() -> None:
    pace = Pace()
    while pace.room:
        pace.wrote(pace.room)
    for _ in range(10):
        pace.answered(1.0)
    assert pace.room == 0
