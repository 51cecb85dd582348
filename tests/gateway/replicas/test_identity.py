"""Who a client is, by its JSON Web Token. By a question to another service: tests/gateway/tenants."""

import asyncio
import base64
import json

import pytest

from cheops.backends.http.identity import ClientIdentifier
from cheops.config.gateway import GatewayConfig
from cheops.config.service_credentials import ClientConfig
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.upstream import UpstreamClient

SERVICE = ServiceConfig("image", "http://a", replication=ReplicationConfig(client=ClientConfig(claim="sub")))


def token(claims: object) -> str:
    parts = (json.dumps(one).encode() for one in ({"alg": "RS256"}, claims))
    return ".".join((*(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts), "signature"))


def identify(*credentials: tuple[str, str]) -> str:
    async def run() -> str:
        return await ClientIdentifier(UpstreamClient(GatewayConfig())).identify(SERVICE, credentials)

    return asyncio.run(run())


def test_a_claim_names_the_client() -> None:
    assert identify(("Authorization", f"Bearer {token({'sub': 'alice@example'})}")) == "alice@example"
    assert identify(("authorization", f"bearer {token({'sub': 17})}")) == "17"


@pytest.mark.parametrize(
    "credentials",
    [
        (),
        (("Authorization", "Basic YTpi"),),
        (("Authorization", "Bearer abc"),),
        (("Authorization", "Bearer a.?.c"),),
        (("Authorization", f"Bearer {token([])}"),),
        (("Authorization", f"Bearer {token({})}"),),
        (("Authorization", f"Bearer {token({'sub': True})}"),),
        (("Authorization", f"Bearer {token({'sub': ''})}"),),
        (("Authorization", f"Bearer {token({'sub': 'a' * 201})}"),),
        (("Authorization", "Bearer " + token({"sub": "a\nb"})),),
        (("Authorization", f"Bearer {token({'sub': ' a'})}"),),
        (("X-Auth-Token", token({"sub": "a"})),),
        # The service might look at the other one.
        (("Authorization", f"Bearer {token({'sub': 'a'})}"), ("X-Auth-Token", "of somebody else")),
        (("Authorization", f"Bearer {token({'sub': 'a'})}"), ("Cookie", "session=of-somebody-else")),
        (("Authorization", f"Bearer {token({'sub': 'a'})}"), ("Authorization", f"Bearer {token({'sub': 'b'})}")),
    ],
)
def test_what_names_nobody_for_certain_is_refused(credentials: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(ClientError, match="it is not known who the client is") as raised:
        identify(*credentials)
    assert raised.value.status == 401
