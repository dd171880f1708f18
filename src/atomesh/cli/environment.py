"""The environment variables that ATOMesh knows; nothing outside `cli/` reads any."""

import os
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.spec import BackendSpec, parse_backend


def home() -> Path:
    """ATOMESH_HOME: models, secrets. Made if missing, for this user only. Raises ConfigurationError."""
    path = Path(os.environ.get("ATOMESH_HOME") or "~/.cache/atomesh").expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make {path}: {error.strerror}; set ATOMESH_HOME to a directory that can be written"
        ) from error
    return path


def admin_token() -> str | None:
    """ATOMESH_ADMIN_TOKEN, None when unset or empty."""
    return os.environ.get("ATOMESH_ADMIN_TOKEN") or None


def backends(words: tuple[str, ...]) -> tuple[BackendSpec, ...]:
    """What --backend says, with the keys that it names. Raises ConfigurationError."""
    specs = tuple(parse_backend(word, os.environ.get) for word in words)
    urls = [spec.url for spec in specs]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigurationError(f"--backend {url} is given {urls.count(url)} times; once is enough")
    return specs


def api_keys(given: tuple[str, ...]) -> tuple[str, ...]:
    """`given` on the command line, then those of ATOMESH_API_KEYS, separated by commas and white space.

    Raises ConfigurationError for an empty key, and for one that the variable could not hold.
    """
    for key in given:
        if not key or "," in key or not key.isascii() or not key.isprintable():
            raise ConfigurationError(
                "an --api-key is empty, or has a comma, a control or a non-ASCII character"
            )
    named = os.environ.get("ATOMESH_API_KEYS", "").split(",")
    keys = (*given, *(key.strip() for key in named))
    return tuple(dict.fromkeys(key for key in keys if key))
