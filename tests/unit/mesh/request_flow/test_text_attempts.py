"""Which requests in text are tried again, and what their clients hear when they are not."""

import pytest

from atomesh.errors import AtomeshError, EngineError, InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.request_flow.text_attempts import MAX_ATTEMPTS, TextAttempts

LOST = ServiceUnavailableError("lost")
BUSY = ServiceUnavailableError("busy", retry_after_s=9)


def noted(attempts: TextAttempts, error: AtomeshError, *, has_begun: bool = False) -> AtomeshError | None:
    """What the client hears at once, None where another is asked."""
    name = f"server-{len(attempts.excluded)}"
    try:
        attempts.note(name, error, is_lost=error is LOST, has_begun=has_begun)
    except AtomeshError as heard:
        return heard
    return None


def test_a_loss_is_free_and_a_refusal_is_charged() -> None:
    attempts = TextAttempts("m")

    assert noted(attempts, LOST) is None
    assert (attempts.excluded, attempts.is_charged) == ({"server-0"}, False)
    assert noted(attempts, BUSY) is None
    assert (attempts.excluded, attempts.is_charged) == ({"server-0", "server-1"}, True)


@pytest.mark.parametrize("error", [InvalidRequestError("no"), EngineError("failed")])
def test_an_error_of_the_request_itself_ends_it(error: AtomeshError) -> None:
    assert noted(TextAttempts("m"), error) is error


def test_after_the_first_bytes_nothing_is_tried_again() -> None:
    assert noted(TextAttempts("m"), BUSY, has_begun=True) is BUSY
    broken = noted(TextAttempts("m"), LOST, has_begun=True)
    assert isinstance(broken, EngineError)
    assert "broke off" in broken.message


def test_there_is_an_end_and_the_servers_own_words_are_the_last() -> None:
    attempts = TextAttempts("m")
    heard = [noted(attempts, BUSY) for _ in range(MAX_ATTEMPTS)]
    assert heard == [None] * (MAX_ATTEMPTS - 1) + [BUSY]

    attempts = TextAttempts("m")
    assert attempts.final_error(LOST) is LOST
    noted(attempts, LOST)
    assert "no server of 'm' answers now" in attempts.final_error(BUSY).message
    noted(attempts, BUSY)
    assert attempts.final_error(LOST) is BUSY
