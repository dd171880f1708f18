import pytest

from atomesh import errors
from atomesh.protocol.generation import WireError
from atomesh.protocol.wire_errors import to_exception, to_wire


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("no", param="prompt"),
        errors.ContextLengthError("too long", param="max_tokens"),
        errors.EngineError("broken"),
        errors.DeadlineExceededError("late"),
        errors.UnsupportedFeatureError("not here"),
        errors.ServiceUnavailableError("full", retry_after_s=17),
    ],
)
def test_what_crosses_the_wire_comes_back(error: errors.AtomeshError) -> None:
    back = to_exception(to_wire(error))
    assert (type(back), vars(back)) == (type(error), vars(error))


@pytest.mark.parametrize(
    "kind", ["FatalRequestError", "AuthenticationError", "annotations", "", "NoSuchError"]
)
def test_a_kind_that_no_worker_may_raise_is_an_engine_error(kind: str) -> None:
    back = to_exception(WireError(kind, "words", "n"))
    assert (type(back), back.message, back.param) == (errors.EngineError, "words", "n")


@pytest.mark.parametrize(("told", "seconds"), [(None, 1), (0, 1), (-5, 1), (9, 9), (10**9, 120)])
def test_when_to_come_back_is_bounded(told: int | None, seconds: int) -> None:
    back = to_exception(WireError("ServiceUnavailableError", "full", None, told))
    assert isinstance(back, errors.ServiceUnavailableError)
    assert back.retry_after_s == seconds
