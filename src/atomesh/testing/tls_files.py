"""Certificates of their own making, for a test's server: made by the openssl program."""

import subprocess
from pathlib import Path

from atomesh.mesh.gateway.tls import TlsFiles


def make_tls_files(directory: Path, name: str = "server") -> TlsFiles:
    """For 127.0.0.1 and localhost, signed by itself, with an elliptic key."""
    files = TlsFiles(directory / f"{name}.crt", directory / f"{name}.key")
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return files


def encrypt_key(files: TlsFiles) -> TlsFiles:
    """The same pair, with a key that wants a password."""
    encrypted = files.key.with_suffix(".locked")
    command = [
        "openssl",
        "ec",
        "-in",
        str(files.key),
        "-aes256",
        "-passout",
        "pass:x",
        "-out",
        str(encrypted),
    ]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return TlsFiles(files.certificate, encrypted)
