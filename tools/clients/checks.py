"""Runs a client's checks against one server, in the client's own environment: URL MODEL → JSON on stdout."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Server:
    """`url` is without a path."""

    url: str
    model: str

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


def run(checks: Mapping[str, Callable[[Server], None]]) -> None:
    """Prints by name "" or what went wrong."""
    server = Server(*sys.argv[1:])
    print(json.dumps({name: _outcome(check, server) for name, check in checks.items()}))


def _outcome(check: Callable[[Server], None], server: Server) -> str:
    try:
        check(server)
    except Exception as error:  # noqa: BLE001  whatever a client raises is its verdict
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""
