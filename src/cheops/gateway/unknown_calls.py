"""Calls of the application that have neither a scope nor a carrier that the gateway knows.

Such a call goes to this site's instance, although the request that caused it may have had another scope: then the
application does not pass on what it should. `services.NAME.unknown_calls` says whether that is allowed, reported, or
refused. While the gateway remembers no scope at all, no call can belong to one, and nothing is reported or refused.
"""

import logging
import time
from collections.abc import Callable, Mapping

from cheops.config.gateway import UnknownCalls
from cheops.config.services import ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.carriers import Carriers
from cheops.gateway.request_log import RequestLog

_EVERY_S = 60.0  # between two lines in the log about one service
_log = logging.getLogger(__name__)


class UnknownCallPolicy:
    """Counts, reports or refuses the calls to each service whose scope is not known."""

    def __init__(
        self,
        services: Mapping[str, ServiceConfig],
        carriers: Carriers,
        request_log: RequestLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._carriers = carriers
        self._request_log = request_log
        self._clock = clock
        self._logged_s: dict[str, float] = {}

    def apply(self, service: str, calls: int = 1) -> None:
        """These calls to a service have no known scope. Raises ClientError if they are refused."""
        policy = self._services[service].listener.unknown_calls
        if policy is UnknownCalls.ALLOW or calls < 1 or not self._carriers.has_scopes:
            return
        self._request_log.count_unknown_calls(service, calls)
        names = ", ".join(dict.fromkeys(name for one in self._services.values() for name in one.listener.carriers))
        missing = f"neither the header Scope nor a known value of {names}" if names else "no header Scope"
        if policy is UnknownCalls.REFUSE:
            raise ClientError(
                f"this call has {missing}, so it is not known where it should run. Have the application pass on one "
                "of them from the request that causes the call, or an empty Scope for a call that none causes; see "
                f"services.{service}.unknown_calls",
                status=409,
            )
        now_s = self._clock()
        if now_s - self._logged_s.get(service, -_EVERY_S) >= _EVERY_S:
            self._logged_s[service] = now_s
            _log.warning(
                "a call of the application to %s has %s: it goes to this site's instance, whatever the scope of the "
                "request is that caused it. See services.%s.unknown_calls",
                service,
                missing,
                service,
            )
