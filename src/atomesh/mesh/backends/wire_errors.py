"""Errors as they cross the token plane, back into exceptions."""

from atomesh import errors
from atomesh.protocol.generation import WireError

_KINDS: dict[str, type[errors.AtomeshError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidRequestError,
        errors.ContextLengthError,
        errors.EngineError,
        errors.ServiceUnavailableError,
        errors.DeadlineExceededError,
        errors.UnsupportedFeatureError,
    )
}


def to_exception(error: WireError) -> errors.AtomeshError:
    """A kind that a worker has no business to raise is an EngineError."""
    return _KINDS.get(error.kind, errors.EngineError)(error.message, param=error.param)
