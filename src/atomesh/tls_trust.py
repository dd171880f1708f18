"""What to do about a server's certificate that is not trusted: more than that it "does not answer"."""

import ssl
from collections.abc import Iterator

# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL's x509_vfy.h
_OTHER_NAME = (62, 64)
_NAME_ITS_ISSUER = (
    "name a PEM file with its issuer, or with itself where it is self-signed, in the variable SSL_CERT_FILE"
)


def distrust(error: BaseException) -> str | None:
    """Why the certificate behind `error` is not trusted, and the remedy; None for other errors."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_code"):
            is_misnamed = cause.verify_code in _OTHER_NAME
            remedy = "ask by a name that it has" if is_misnamed else _NAME_ITS_ISSUER
            return f"its certificate is not trusted ({cause.verify_message.rstrip('.')}): {remedy}"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: object = error
    while isinstance(cause, BaseException) and cause not in seen:
        seen.append(cause)
        yield cause
        cause = getattr(cause, "certificate_error", None) or cause.__cause__ or cause.__context__
