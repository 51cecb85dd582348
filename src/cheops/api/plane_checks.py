"""Is the data plane as it should be: which it is, whether it works, and how much it does alone."""

from collections.abc import Iterator

from cheops.gateway.gateway import Gateway


async def plane_checks(gateway: Gateway | None) -> Iterator[tuple[str, str, str]]:
    """Name, what was found, and what to do where it is not right."""
    if gateway is None:
        return iter(())
    fast = gateway.fast
    if fast is None:
        found, hint = "the agent forwards by itself", ""
        if why := gateway.without_haproxy:
            found += f": {why}"
            hint = "mend HAProxy and restart the agent, or set gateway.data_plane to builtin"
        return iter([("requests are forwarded", found, hint)])
    await fast.refresh()
    served = fast.counting.fast + fast.counting.slow
    share = f"{fast.counting.fast / served:.1%} of {served:,} requests" if served else "no request yet"
    known = f"{len(fast.table):,} flows"
    if fast.carrying is not None:
        known += f", {fast.carrying.count:,} values of carriers"
    found = f"by HAProxy (process {fast.haproxy.pid}): {known}; {share} without the agent"
    if fast.trouble:
        hint = f"see {fast.haproxy.folder / 'haproxy.log'}; the agent tries again by itself"
        return iter([("requests are forwarded", f"{found}; {fast.trouble}", hint)])
    return iter([("requests are forwarded", found, "")])
