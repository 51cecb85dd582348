"""A backend without an agent."""

from collections.abc import Mapping

from cheops.backends.command.backend import CommandBackend
from cheops.backends.command.runner import CommandRunner
from cheops.backends.protocol import BackendContext, FileAccess
from cheops.config.site import SiteConfig
from cheops.engine.replica import Replica
from cheops.store.files import FileStore
from cheops.store.room import DiskRoom


async def no_replica(resource: str) -> Replica:
    raise AssertionError(f"{resource} is not loaded in these tests")


async def no_drift(why: Mapping[str, str]) -> None:
    raise AssertionError(f"nothing drifts in these tests: {why}")


def command_backend(config: SiteConfig) -> CommandBackend:
    """One for all types of a configuration; needs an event loop only when it runs something."""
    files = FileStore(config.source.parent / "files", DiskRoom(config.source.parent, 0))
    access = FileAccess(
        lambda hash_: files.path(hash_) if files.has(hash_) else None,
        lambda _resource, _hash: False,
        lambda _resource, _hash: None,
    )
    return CommandBackend(
        BackendContext(
            config,
            config.types,
            access,
            CommandRunner(),
            lambda _resource: None,
            lambda _site, _why: None,
            no_replica,
            no_drift,
        )
    )
