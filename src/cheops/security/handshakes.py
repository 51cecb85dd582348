"""Why somebody does not get through a handshake of TLS, in the same words wherever it is counted."""

WRONG_AUTHORITY, EXPIRED = "certificate of unknown authority", "expired certificate"
ANOTHER_SITE = "another site at its address"
BAD_CERTIFICATE, BAD_HANDSHAKE = "bad certificate", "failed TLS handshake"
NO_CERTIFICATE = "no certificate"
_EXPIRED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_HOSTNAME_MISMATCH = 62
_UNKNOWN = (2, 18, 19, 20, 21, 24)  # no issuer, self-signed, not verifiable, not an authority


def reason_of(code: int) -> str:
    """Why a certificate is refused, by OpenSSL's number for it."""
    if code in _EXPIRED:
        return EXPIRED
    if code == _HOSTNAME_MISMATCH:
        return ANOTHER_SITE
    return WRONG_AUTHORITY if code in _UNKNOWN else BAD_CERTIFICATE
