"""Two connections joined, for what is not HTTP any more: bytes go both ways until both sides have ended."""

import asyncio

from cheops.gateway.wire import Wire

_LOOK_S = 60.0


async def join(client: Wire, service: Wire, idle_s: float) -> None:
    """Until both ends have said that they are done, one breaks off, or nothing has moved for too long."""
    activity = _Activity(idle_s)
    pumps = {
        asyncio.ensure_future(_pump(client, service, activity)),
        asyncio.ensure_future(_pump(service, client, activity)),
    }
    try:
        await asyncio.gather(*pumps)
        client.close()
        service.close()
    except (OSError, TimeoutError):
        client.abort()
        service.abort()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)


class _Activity:
    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()

    def moved(self) -> None:
        self._last_s = self._loop.time()

    def left_s(self) -> float:
        return self._last_s + self.idle_s - self._loop.time()


async def _pump(source: Wire, sink: Wire, activity: _Activity) -> None:
    while True:
        left_s = activity.left_s()
        if left_s <= 0:
            raise TimeoutError
        try:
            data = await source.read(min(left_s, _LOOK_S) + 0.01)
        except TimeoutError:
            continue
        if not data:
            if source.is_lost:
                raise ConnectionResetError
            sink.write_end()
            return
        activity.moved()
        sink.write(data)
        await sink.drain(activity.idle_s)
