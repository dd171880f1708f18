"""The responses there are: those that run in the background, and those that are stored."""

import logging
import sqlite3

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.responses.background import BackgroundRuns
from atomesh.frontend.openai.responses.items import Item, Remembered, named_items
from atomesh.frontend.openai.responses.request import PromptFields
from atomesh.frontend.openai.responses.response_body import Body
from atomesh.frontend.openai.responses.response_store import ResponseStore
from atomesh.frontend.openai.responses.stored_response import (
    StoredResponse,
    StoreLimits,
    not_found,
    previous_not_found,
)
from atomesh.frontend.options import FrontendOptions

_log = logging.getLogger(__name__)


class KeptResponses:
    """Whoever asks sees its own alone. Raises ConfigurationError when the store's file is not good."""

    def __init__(self, options: FrontendOptions) -> None:
        self._limits = StoreLimits(
            options.max_stored_responses, options.max_stored_bytes, request_bytes=options.max_body_bytes
        )
        self._store = ResponseStore(options.response_store, self._limits)
        self.runs = BackgroundRuns(options.max_background)

    def check_size(self, num_bytes: int) -> None:
        """Raises InvalidRequestError for a request so large that keeping it would cost too many others."""
        limit = self._limits.input_bytes
        if num_bytes > limit:
            raise InvalidRequestError(
                f"input: the request has {num_bytes} bytes and at most {limit} are kept of one; send "
                "store: false, or a shorter input",
                param="input",
            )

    async def recall(self, owner: str, request: PromptFields) -> Remembered:
        """What the request builds on. Raises InvalidRequestError."""
        named = named_items(request.input)
        return Remembered(
            await self._items_before(owner, request.previous_response_id),
            await self._store.find_items(owner, named) if named else {},
        )

    async def _items_before(self, owner: str, previous: str | None) -> list[Item]:
        """The conversation up to and with the response `previous`. Raises InvalidRequestError."""
        if previous is None:
            return []
        line = await self._store.conversation(owner, previous)
        if line is None:
            raise previous_not_found(previous)
        if line[-1].is_live:
            raise InvalidRequestError(
                f"previous_response_id: the response {previous[:80]!r} is still being answered; wait for "
                "its end",
                param="previous_response_id",
            )
        return [item for response in line for item in response.turn()]

    async def keep(self, response: StoredResponse) -> None:
        """The answer goes out even where it cannot be stored."""
        try:
            await self._store.put(response)
        except sqlite3.Error as error:
            _log.error("response %s cannot be stored: %s", response.id, error)

    async def body(self, owner: str, response_id: str) -> Body:
        """Raises NotFoundError."""
        run = self.runs.running(owner, response_id)
        return (await self._stored(owner, response_id)).body if run is None else run.body()

    async def input_items(self, owner: str, response_id: str) -> list[Item]:
        """All that it answers, the conversation before it included. Raises NotFoundError."""
        response = await self._stored(owner, response_id)
        try:
            before = await self._items_before(owner, response.previous)
        except InvalidRequestError:  # a turn before it has been deleted, or they are too many
            before = []
        return [*before, *response.items]

    async def cancel(self, owner: str, response_id: str) -> Body:
        """The response as it is then. Raises NotFoundError, InvalidRequestError."""
        run = self.runs.running(owner, response_id)
        if run is not None:
            await run.end()
            return run.body()
        body = (await self._stored(owner, response_id)).body
        if not body["background"]:
            raise InvalidRequestError(
                f"the response {response_id[:80]!r} does not run in the background, and only such can be "
                "cancelled",
                param="response_id",
            )
        return body

    async def delete(self, owner: str, response_id: str) -> None:
        """Raises NotFoundError."""
        if (run := self.runs.running(owner, response_id)) is not None:
            await run.end()
        if not await self._store.delete(owner, response_id):
            raise not_found(response_id)
        self.runs.forget(response_id)

    async def close(self) -> None:
        await self.runs.close()
        self._store.close()

    async def _stored(self, owner: str, response_id: str) -> StoredResponse:
        response = await self._store.get(owner, response_id)
        if response is None:
            raise not_found(response_id)
        return response
