"""Why another site cannot be reached, in plain words."""

import errno
import ssl
from unittest.mock import Mock

import aiohttp
import pytest

from cheops.peers.client import REFUSED_CONNECTION, InvalidResponseError, NoAddressError
from cheops.peers.http_client import http_problem


def connecting(number: int) -> aiohttp.ClientConnectorError:
    return aiohttp.ClientConnectorError(Mock(), OSError(number, "library text"))


def distrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = "certificate has expired"
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (connecting(errno.ECONNREFUSED), REFUSED_CONNECTION),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), REFUSED_CONNECTION),
        (connecting(errno.EHOSTUNREACH), "no connection can be made: no route to host"),
        (aiohttp.ServerDisconnectedError(), "the connection was closed without a response"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "the connection was closed without a response"),
        (TimeoutError(), "no response in time"),
        (aiohttp.ConnectionTimeoutError(), "no response in time"),
        (distrusted(), "its certificate is not accepted: certificate has expired"),
        (
            aiohttp.ClientConnectorCertificateError(Mock(), distrusted()),
            "its certificate is not accepted: certificate has expired",
        ),
        (ssl.SSLError(1, "x"), "no secure connection can be made"),
        (NoAddressError("there is no known address of 'x'"), "there is no known address of 'x'"),
        (InvalidResponseError("a response that is too large"), "a response that is too large"),
        (aiohttp.ClientError("responded with 500"), "responded with 500"),
        (aiohttp.ClientError(), "ClientError"),
    ],
)
def test_each_problem_is_said_in_plain_words(error: Exception, text: str) -> None:
    assert http_problem(error) == text
