"""A server of our own with a certificate that nobody has signed, and what each of our clients says of it."""

import asyncio
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from atomesh.cli.explain import _ask
from atomesh.engine.registrar import HttpDoor
from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.testing.tls_files import make_tls_files
from atomesh.tls_trust import distrust

REMEDY = (
    r"its certificate is not trusted \(self.signed certificate\): "
    "name a PEM file with its issuer, or with itself where it is self-signed, in the variable SSL_CERT_FILE"
)


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"error": {"message": "no answer is remembered"}}'
        self.send_response(404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls_files(tmp_path_factory.mktemp("tls")).certificate


@pytest.fixture(scope="module")
def url(certificate: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up is the test
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_worker_that_registers_says_so(url: str) -> None:
    with pytest.raises(OSError, match=f"the gateway at {url} cannot be used: {REMEDY}"):
        asyncio.run(HttpDoor(url).ask())


def test_a_gateway_says_so_of_an_engine(url: str) -> None:
    async def scenario() -> str:
        client = HttpClient(url, None)
        try:
            with pytest.raises(WorkerLostError) as lost:
                await client.get("/v1/models", 5.0)
            return lost.value.why
        finally:
            await client.close()

    assert asyncio.run(scenario()) == REMEDY.replace("\\", "").replace("self.signed", "self-signed")


def test_explain_says_so(url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the gateway at {url} cannot be asked: {REMEDY}"):
        asyncio.run(_ask(url, "token"))


def test_the_remedy_is_one(url: str, certificate: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atomesh", "explain", "x", f"--url={url}"],
        env={**os.environ, "SSL_CERT_FILE": str(certificate), "ATOMESH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "atomesh: no answer is remembered\n")


def test_a_certificate_of_another_name_has_another_remedy() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 64, "IP address mismatch, certificate is not valid for '::1'."
    outer = OSError("outer")
    outer.__cause__ = error
    assert distrust(outer) == (
        "its certificate is not trusted (IP address mismatch, certificate is not valid for '::1'): "
        "ask by a name that it has"
    )
    assert distrust(OSError("refused")) is None
