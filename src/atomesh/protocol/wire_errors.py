"""Errors as they cross the token plane: into words, and back into exceptions."""

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


def to_wire(error: errors.AtomeshError) -> WireError:
    retry_after_s = error.retry_after_s if isinstance(error, errors.ServiceUnavailableError) else None
    return WireError(type(error).__name__, error.message, error.param, retry_after_s)


def to_exception(error: WireError) -> errors.AtomeshError:
    """A kind that a worker has no business to raise is an EngineError."""
    kind = _KINDS.get(error.kind, errors.EngineError)
    if issubclass(kind, errors.ServiceUnavailableError):
        return kind(error.message, param=error.param, retry_after_s=error.retry_after_s or 1)
    return kind(error.message, param=error.param)
