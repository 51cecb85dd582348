"""All files that HAProxy reads. Maps are empty: what stands in them is told to it while it runs."""

from typing import TYPE_CHECKING

from cheops.gateway.fast import naming
from cheops.gateway.fast.frontend import AUTHORITIES, CERTIFICATE, SENDERS
from cheops.gateway.fast.layout import Layout
from cheops.gateway.fast.problems import error_files
from cheops.gateway.fast.rendering import CONFIG, rendered

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


def files_of(layout: Layout, keyring: "Keyring | None") -> dict[str, bytes]:
    flows = (naming.map_of(service.name) for service in layout.services)
    maps = (SENDERS, naming.SERVICES, naming.CARRIED, *flows)
    files = {**error_files(layout.here), **dict.fromkeys(maps, b"")}
    if keyring is not None:
        folder = keyring.folder
        files[CERTIFICATE] = folder.certificate_file.read_bytes() + folder.key_file.read_bytes()
        files[AUTHORITIES] = folder.authorities.pem
    files[CONFIG] = rendered(layout).encode()
    return files
