"""Which model to ask for, once the server is there to say."""

import asyncio
from collections.abc import Callable

from atomesh.bench.failures import RequestFailed
from atomesh.bench.openai_client import OpenAIClient
from atomesh.errors import ConfigurationError

POLL_S = 0.5
STARTING = 503


async def choose_model(
    client: OpenAIClient,
    wanted: str | None,
    *,
    on_wait: Callable[[str], None],
    patience_s: float = 600.0,
) -> str:
    """`wanted`, else the first model that the server lists.

    A server that says it is starting is waited for, after one word to `on_wait`. Raises ConfigurationError,
    with what to do about it, when nothing answers or no model is served.
    """
    try:
        async with asyncio.timeout(patience_s):
            models = await _models_once_ready(client, on_wait)
    except TimeoutError as error:
        raise ConfigurationError(
            f"the server at {client.url} was still starting after {patience_s:g} s; look at its log"
        ) from error
    except RequestFailed as failure:
        if wanted is not None and failure.status in (404, 405, 501):
            return wanted
        raise ConfigurationError(_advice(client.url, failure)) from failure
    if wanted is not None:
        return wanted
    if not models:
        raise ConfigurationError(f"the server at {client.url} lists no model; name one with --model")
    return models[0]


async def _models_once_ready(client: OpenAIClient, on_wait: Callable[[str], None]) -> list[str]:
    has_spoken = False
    while True:
        try:
            return await client.models()
        except RequestFailed as failure:
            if failure.status != STARTING:
                raise
        if not has_spoken:
            on_wait(f"The server at {client.url} is starting; waiting for it …")
            has_spoken = True
        await asyncio.sleep(POLL_S)


def _advice(url: str, failure: RequestFailed) -> str:
    if failure.status in (401, 403):
        return f"the server at {url} refuses the API key; give one with --api-key or OPENAI_API_KEY"
    if failure.status is None:
        return (
            f"no OpenAI-compatible server answers at {url}; start one with `atomesh serve`, "
            f"or name another with --url ({failure})"
        )
    return f"the server at {url} cannot list its models: {failure}"
