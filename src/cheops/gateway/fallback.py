"""Otherwise: when the next site is tried, and what is said when it is not. Pure.

The next one is tried if the one before certainly did nothing, or if doing it twice is as good as once; and
only if the body is still at hand.
"""

from dataclasses import dataclass

from cheops.errors import CheopsError
from cheops.gateway.asking import may_be_repeated
from cheops.gateway.errors import UpstreamError
from cheops.gateway.headers import EFFECT
from cheops.gateway.peers import NoGatewayError, SiteDownError
from cheops.gateway.routing import Choice, Forward, Replicate
from cheops.gateway.seam import Head, Headers

_FAILED = (502, 503, 504)
_REFUSED_FOR_NOW = 503  # who says so did nothing


@dataclass(frozen=True, slots=True)
class AtHand:
    """What there is for another attempt."""

    head: Head
    can_restart: bool  # all of the body that was read is kept
    choices_left: int


def goes_on_after_answer(status: int, headers: Headers, choice: Choice, at_hand: AtHand) -> bool:
    """Whether this answer is no reason to stop. Of 502 and 504 another gateway says whether anything can have
    happened, where it knows."""
    if status not in _FAILED or not at_hand.choices_left or not at_hand.can_restart:
        return False
    told = any(name.lower() == EFFECT.lower() and value == "none" for name, value in headers)
    did_nothing = status == _REFUSED_FOR_NOW or (told and isinstance(choice, Forward))
    return did_nothing or may_be_repeated(at_hand.head)


def goes_on_after_error(error: CheopsError, choice: Choice, at_hand: AtHand) -> bool:
    if not at_hand.choices_left or not _is_about_the_place(error, choice) or not at_hand.can_restart:
        return False
    return not _may_have_had_effect(error) or may_be_repeated(at_hand.head)


def given_up(error: CheopsError, name: str, failed: list[str], at_hand: AtHand) -> CheopsError:
    """The error with all that is to be known of it: where, after what, and why not elsewhere."""
    if not isinstance(error, UpstreamError):
        return error
    before = f" (before that {'; '.join(failed)})" if failed else ""
    elsewhere = ""
    if at_hand.choices_left and not at_hand.can_restart:
        elsewhere = ". It is not tried elsewhere: part of its body is sent, and it is too large to be kept"
    elif at_hand.choices_left:
        elsewhere = ". It is not tried elsewhere: it may have had an effect, and has no Idempotency-Key"
    text = f"{name}: {error}{before}{elsewhere}"
    return UpstreamError(text, error.why, may_have_had_effect=error.may_have_had_effect, status=error.status)


def why(error: CheopsError) -> str:
    """In a word or two, without a comma."""
    match error:
        case UpstreamError():
            return error.why
        case SiteDownError():
            return "down"
        case NoGatewayError():
            return "no gateway"
        case _:
            return str(error.status)


def _is_about_the_place(error: CheopsError, choice: Choice) -> bool:
    """And not about the request, with which it would be the same elsewhere."""
    if isinstance(error, UpstreamError | SiteDownError | NoGatewayError):
        return True
    return isinstance(choice, Replicate) and error.status in _FAILED


def _may_have_had_effect(error: CheopsError) -> bool:
    if isinstance(error, UpstreamError):
        return error.may_have_had_effect
    return not isinstance(error, SiteDownError | NoGatewayError) and error.status != _REFUSED_FOR_NOW
