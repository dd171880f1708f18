"""Secrets that this machine's user keeps in files of mode 600."""

import os
import secrets
from pathlib import Path

from atomesh.errors import ConfigurationError

MIN_CHARS = 16


def read_secret(path: Path) -> str:
    """The secret in `path`, without surrounding white space.

    Raises ConfigurationError when the file cannot be read or holds fewer than MIN_CHARS characters.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the secret in {path}: {error}") from error
    if len(secret) < MIN_CHARS:
        raise ConfigurationError(
            f"the secret in {path} has {len(secret)} characters; it needs at least {MIN_CHARS}: "
            f"write a longer one, such as the output of `openssl rand -hex {MIN_CHARS}`"
        )
    return secret


def read_or_make_secret(path: Path) -> str:
    """As read_secret; makes a random one, whole or not at all, when there is no such file."""
    if not path.exists():
        _make(path)
    return read_secret(path)


def cluster_secret(path: Path | None, home: Path) -> bytes:
    """What gateways and workers share: the content of `path`, else this user's own below `home`."""
    text = read_or_make_secret(home / "secret") if path is None else read_secret(path)
    return text.encode()


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)  # unlike a rename, never replaces what another process has just made
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigurationError(f"cannot make a secret in {path}: {error}") from error
