"""What is kept of a response, and how much of all of them."""

from dataclasses import dataclass
from typing import Any

from atomesh.errors import InvalidRequestError, NotFoundError
from atomesh.frontend.openai.responses.items import Item
from atomesh.frontend.openai.responses.response_body import LIVE, Body, output_of

_LARGEST_SHARE = 4  # of the store, for one input


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`items` are those of its own input; what came before them is at `previous`."""

    owner: str
    body: Body
    items: list[Item]

    @property
    def id(self) -> str:
        response_id: str = self.body["id"]
        return response_id

    @property
    def previous(self) -> str | None:
        previous: str | None = self.body["previous_response_id"]
        return previous

    @property
    def is_live(self) -> bool:
        return self.body["status"] in LIVE

    def turn(self) -> list[Item]:
        """What it adds to the conversation."""
        return [*self.items, *output_of(self.body)]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Of all responses together, of which those unused for longest go first; `request_bytes` of those that
    one request builds on."""

    responses: int
    num_bytes: int
    request_bytes: int

    @property
    def input_bytes(self) -> int:
        """Of what is kept of one request: more would cost too many others."""
        return self.num_bytes // _LARGEST_SHARE

    @property
    def named_bytes(self) -> int:
        """Of the items that one input names: they are part of it, and kept with it once more."""
        return min(self.request_bytes, self.input_bytes)


def not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no response {response_id[:80]!r}, or it is no longer kept", param="response_id"
    )


def previous_not_found(response_id: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"previous_response_id: there is no response {response_id[:80]!r}, or it or one before it is no "
        "longer kept; send its items as input",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def listed(items: list[Item], first: int, limit: int) -> dict[str, Any]:
    """A page of `limit` items from place `first`."""
    page = items[first : first + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + limit < len(items),
    }
