import stat
from pathlib import Path

import pytest

from atomesh.cli.secret_files import cluster_secret, read_or_make_secret, read_secret
from atomesh.errors import ConfigurationError


def test_a_made_secret_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = read_or_make_secret(path)
    assert len(first) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_secret(path) == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_two_homes_have_two_secrets(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert cluster_secret(None, tmp_path / "a") != cluster_secret(None, tmp_path / "b")


def test_a_given_file_goes_before_the_users_own(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("  sixteen-letters!\n")
    assert cluster_secret(given, tmp_path) == b"sixteen-letters!"
    assert not (tmp_path / "secret").exists()


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 32])
def test_a_bad_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="secret"):
        read_secret(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_secret(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="cannot make"):
        read_or_make_secret(tmp_path / "no" / "such" / "place")
