"""Invitations of new sites."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says


class InviteRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site that is to become part of the mesh."""

    site: Annotated[str, says("Its name.", "site4", min_length=1, max_length=128)]
    addresses: Annotated[
        tuple[str, ...],
        says("Hosts that its certificate may be for although another site has them too.", [], max_length=32),
    ] = ()
    valid_for_s: Annotated[
        float, says("How long the invitation holds, in seconds; an hour.", 3600.0, ge=1, le=604_800)
    ] = 3600.0


class Invitation(Struct, frozen=True, kw_only=True):
    """A site that may join, once."""

    site: Annotated[str, says("Its name.", "site4")]
    code: Annotated[str, says("For 'cheops site join' at that site. A secret.", "cheops-join-lNo…")]
    expires_ms: Annotated[int, says("Until when, in milliseconds since 1970.", 1_794_816_000_000)]
