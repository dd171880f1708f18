import fcntl
from pathlib import Path

import pytest

from atomesh.cli.socket_directory import PID_FILE, socket_directory, sweep


def left_behind(parent: Path, name: str) -> Path:
    """A directory as a killed server leaves it."""
    path = parent / name
    path.mkdir()
    (path / PID_FILE).write_text("1\n")
    (path / "worker.sock").touch()
    return path


def test_it_is_for_this_user_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    with socket_directory(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o700
        assert path.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_start_sweeps_what_dead_servers_left(tmp_path: Path) -> None:
    left_behind(tmp_path, "atomesh-dead")
    with socket_directory(tmp_path) as path:
        assert list(tmp_path.iterdir()) == [path]


def test_a_live_server_is_left_alone(tmp_path: Path) -> None:
    with socket_directory(tmp_path) as path:
        sweep(tmp_path)
        assert (path / PID_FILE).exists()


@pytest.mark.parametrize("name", ["other-dead", "atomesh-starting"])
def test_what_is_no_dead_server_of_ours_is_left_alone(tmp_path: Path, name: str) -> None:
    path = left_behind(tmp_path, name)
    if name == "atomesh-starting":
        (path / PID_FILE).unlink()
    sweep(tmp_path)
    assert path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = left_behind(tmp_path, "elsewhere")
    (tmp_path / "atomesh-link").symlink_to(target)
    sweep(tmp_path)
    assert (target / "worker.sock").exists()


def test_the_lock_is_what_counts_not_the_number(tmp_path: Path) -> None:
    path = left_behind(tmp_path, "atomesh-live")
    with (path / PID_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep(tmp_path)
        assert path.exists()
    sweep(tmp_path)
    assert not path.exists()
