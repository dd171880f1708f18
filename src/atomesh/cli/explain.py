"""`atomesh explain`: why an answer came from the workers that it came from."""

import asyncio
import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import aiohttp
from cyclopts import Parameter
from rich.console import Console

from atomesh.cli import environment
from atomesh.cli.explain_table import print_explanation
from atomesh.cli.gateway import admin_token
from atomesh.errors import ConfigurationError
from atomesh.tls_trust import distrust

TIMEOUT_S = 10.0


def explain(
    answer: str,
    /,
    *,
    url: str = "http://127.0.0.1:8000",
    admin_token_file: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say why an answer came from the workers that it came from, and what had been expected of them.

    Parameters
    ----------
    answer
        The id in the answer, such as chatcmpl-…; the gateway remembers the last thousand or so.
    url
        Root of the gateway.
    admin_token_file
        File with the token for the admin routes; by default the one in ATOMESH_HOME. ATOMESH_ADMIN_TOKEN goes
        before it.
    json
        Write one JSON document to stdout instead of tables.
    """
    token = admin_token(admin_token_file, environment.home())
    document = asyncio.run(_ask(f"{url.rstrip('/')}/explain/{quote(answer, safe='')}", token))
    if "error" in document:
        print(f"atomesh: {document['error']['message']}", file=sys.stderr)
        return 1
    if json:
        print(json_module.dumps(document))
    else:
        print_explanation(document, Console(highlight=False, soft_wrap=True))
    return 0


async def _ask(url: str, token: str) -> dict[str, Any]:
    """Raises ConfigurationError when there is no gateway at the URL."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session,
            session.get(url, headers=headers) as answer,
        ):
            document = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        if (why := distrust(error)) is not None:
            raise ConfigurationError(f"the gateway at {url[:200]} cannot be asked: {why}") from None
        raise ConfigurationError(
            f"no gateway answers at {url[:200]}: {error or 'it took too long'}; choose another with --url"
        ) from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"what answers at {url[:200]} is no gateway; choose another with --url")
    return document
