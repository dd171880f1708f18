"""TLS for the public side: an operator's certificate and key, checked before anything listens."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from atomesh.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate, with those between it and its root after it, and its key, unencrypted."""

    certificate: Path
    key: Path


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and later. Raises ConfigurationError, which names the flag and the file that is at fault."""
    for flag, path in (("--tls-cert", files.certificate), ("--tls-key", files.key)):
        _check_readable(flag, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except _EncryptedKeyError:
        raise ConfigurationError(
            f"the key in {files.key} (--tls-key) is encrypted; write an unencrypted one that only this user "
            "can read"
        ) from None
    except ssl.SSLError as error:
        raise ConfigurationError(_explain(files, error)) from None
    return context


class _EncryptedKeyError(Exception):
    """Nobody is here to type a password."""


def _refuse_password() -> str:
    raise _EncryptedKeyError


def _check_readable(flag: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {flag} {path}: {error.strerror}") from None


def _explain(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the key in {files.key} (--tls-key) does not belong to the certificate in {files.certificate} "
            "(--tls-cert); give both files of one pair, the server's own certificate first"
        )
    culprit = "--tls-cert" if not _has_certificate(files.certificate) else "--tls-key"
    path = files.certificate if culprit == "--tls-cert" else files.key
    kind = "certificate" if culprit == "--tls-cert" else "private key"
    remedy = "are the two swapped?" if _are_swapped(files) else "write it anew"
    return f"{path} ({culprit}) holds no usable {kind} in PEM form ({error.reason or error}); {remedy}"


def _are_swapped(files: TlsFiles) -> bool:
    return not _has_certificate(files.certificate) and _has_certificate(files.key)


def _has_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True
