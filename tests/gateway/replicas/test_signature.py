"""AWS Signature Version 4, by the examples of its documentation, and the key of a site."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cheops.backends.http.credentials import CredentialsError
from cheops.backends.http.signature import (
    AccessKey,
    RequestSigner,
    is_refused_key,
    refuse_signed_chunks,
    sign,
)
from cheops.config.service_credentials import SigV4Config
from cheops.errors import ClientError

KEY = AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
AT = datetime(2013, 5, 24, tzinfo=UTC)
HOST = ("Host", "examplebucket.s3.amazonaws.com")


def signed(query: str, *headers: tuple[str, str], path: str = "/", key: AccessKey = KEY) -> dict[str, str]:
    config = SigV4Config(file=Path("unused"))
    found = sign(key, config, AT, method="GET", path=path, query=query, headers=(HOST, *headers), content_hash=EMPTY)
    return {name.lower(): value for name, value in found}


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("prefix=J&max-keys=2", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_aws(query: str, signature: str) -> None:
    assert signed(query)["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )


def test_what_a_client_signed_is_signed_anew() -> None:
    of_client = (
        ("X-Amz-Date", "20000101T000000Z"),
        ("X-Amz-Meta-A", "a  b"),
        ("Accept", "x"),
        ("Authorization", "old"),
    )
    found = signed("", *of_client, key=AccessKey(KEY.id, KEY.secret, "t"))
    assert found["x-amz-date"] == "20130524T000000Z"
    assert (
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-security-token,"
        in found["authorization"]
    )
    # Two spellings of a path have one signature.
    assert signed("", path="/a%20b/c+d")["authorization"] == signed("", path="/a%20b/c%2Bd")["authorization"]


def test_the_key_of_a_site_is_read_from_a_file_and_never_shown(tmp_path: Path) -> None:
    asyncio.run(_the_key_of_a_site_is_read_from_a_file_and_never_shown(tmp_path))


async def _the_key_of_a_site_is_read_from_a_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    signer = RequestSigner("store", SigV4Config(file=file), AT.timestamp)
    with pytest.raises(CredentialsError, match=r"services\.store\.sign\.sigv4\.file: .*No such file"):
        await signer.signed("GET", "/?lifecycle", (HOST,), EMPTY)
    for wrong in ("aws_secret_access_key = s3cret\n", "[default]\naws_secret_access_key = s3cret\n", "[other]\n"):
        file.write_text(wrong)
        with pytest.raises(CredentialsError, match="has no aws_access_key_id and aws_secret_access_key") as caught:
            await signer.signed("GET", "/", (HOST,), EMPTY)
        assert "s3cret" not in str(caught.value)
    file.write_text(f"[default]\naws_access_key_id = {KEY.id}\naws_secret_access_key = {KEY.secret}\n")
    found = dict(await signer.signed("GET", "/?lifecycle", (HOST,), EMPTY))
    assert found["Authorization"].endswith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
    file.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = other\n")
    assert "Credential=AKIA" in dict(await signer.signed("GET", "/", (HOST,), EMPTY))["Authorization"]
    signer.forget()
    assert "Credential=new/" in dict(await signer.signed("GET", "/", (HOST,), EMPTY))["Authorization"]
    assert KEY.secret not in repr(KEY)


def test_what_services_say_about_a_key() -> None:
    assert is_refused_key(403, b"<Error><Code>SignatureDoesNotMatch</Code>")
    assert not is_refused_key(403, b"<Error><Code>AccessDenied</Code>")
    assert not is_refused_key(200, b"SignatureDoesNotMatch")


def test_chunks_that_a_client_signed_cannot_be_replicated() -> None:
    refuse_signed_chunks((("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),))
    with pytest.raises(ClientError, match="each chunk of this body has a signature of the client"):
        refuse_signed_chunks((("X-Amz-Content-SHA256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),))
