"""One site as a state machine: `Site.step(event, now_ms)` gives effects. No await, clock, randomness or I/O.

The asyncio agent and the simulator drive the very same code. Whoever drives it carries out the effects
of a step in their order, and those of one step before those of the next; a `Save` is durable before the next
effect is begun. That order is the whole contract of safety: nothing is run, sent or answered before what it
depends on is on disk.
"""
