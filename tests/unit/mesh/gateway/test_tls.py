import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from atomesh.errors import ConfigurationError
from atomesh.mesh.gateway.tls import TlsFiles, server_context
from atomesh.testing.tls_files import encrypt_key, make_tls_files


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def files(directory: Path) -> TlsFiles:
    return make_tls_files(directory)


def test_nothing_older_than_tls_1_2(files: TlsFiles) -> None:
    context = server_context(files)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not context.options & ssl.OP_NO_TLSv1_3


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


BAD: dict[str, tuple[Callable[[TlsFiles, Path], TlsFiles], str]] = {
    "no certificate": (
        lambda files, at: TlsFiles(at / "none.crt", files.key),
        "cannot read --tls-cert .*none.crt: No such file",
    ),
    "no key": (
        lambda files, at: TlsFiles(files.certificate, at / "none.key"),
        "cannot read --tls-key .*none.key",
    ),
    "a directory": (lambda files, at: TlsFiles(at, files.key), "cannot read --tls-cert"),
    "another pair's key": (
        lambda files, at: TlsFiles(files.certificate, make_tls_files(at, "other").key),
        "other.key .--tls-key. does not belong to the certificate in .*server.crt",
    ),
    "not PEM": (
        lambda files, at: TlsFiles(write(at / "x.crt", "hello\n"), files.key),
        "x.crt .--tls-cert. holds no usable certificate .*; write it anew",
    ),
    "an empty key": (
        lambda files, at: TlsFiles(files.certificate, write(at / "x.key", "")),
        "x.key .--tls-key. holds no usable private key",
    ),
    "the wrong way round": (
        lambda files, _: TlsFiles(files.key, files.certificate),
        "server.key .--tls-cert. holds no usable certificate .*; are the two swapped?",
    ),
    "a locked key": (lambda files, _: encrypt_key(files), "server.locked .--tls-key. is encrypted"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_files_are_named(files: TlsFiles, tmp_path: Path, fault: str) -> None:
    make, says = BAD[fault]
    with pytest.raises(ConfigurationError, match=says):
        server_context(make(files, tmp_path))
