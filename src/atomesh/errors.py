"""Every error ATOMesh raises on purpose, each with what a client of the HTTP API sees of it.

    AtomeshError                      500 server_error
    ├── ConfigurationError            (start-up: a flag, a file, a machine that cannot do it)
    │   └── ModelFileError            (a model directory or GGUF file that cannot be served)
    ├── InvalidRequestError           400 invalid_request_error
    │   └── ContextLengthError        400 code context_length_exceeded
    ├── AuthenticationError           401 invalid_api_key
    ├── PermissionDeniedError         403 permission_denied
    ├── NotFoundError                 404 not_found
    │   └── ModelNotFoundError        404 model_not_found
    ├── MethodNotAllowedError         405 method_not_allowed
    ├── RequestTimeoutError           408 request_timeout
    ├── RequestTooLargeError          413 request_too_large
    ├── UnsupportedMediaTypeError     415 unsupported_media_type
    ├── RateLimitError                429 rate_limit_exceeded, with Retry-After
    ├── EngineError                   500 server_error
    │   └── FatalRequestError         500 server_error, with x-should-retry: false
    ├── UnsupportedFeatureError       501 not_implemented
    ├── ServiceUnavailableError       503 service_unavailable_error, with Retry-After
    └── DeadlineExceededError         504 deadline_exceeded

A message names the value, the limit and the remedy; never a path on the server, an address or a traceback,
except a ConfigurationError, which only the operator reads.
"""

from typing import ClassVar


class AtomeshError(Exception):
    """Base of all; `param` is the JSON path of the offending field, `code` a stable machine-readable word."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code


class ConfigurationError(AtomeshError):
    """The process cannot start as asked."""


class ModelFileError(ConfigurationError):
    """A model directory or file is missing, damaged, hostile or of a kind that is not supported."""


class InvalidRequestError(AtomeshError, ValueError):
    """Also a ValueError, which is what users of `LLM` expect of a bad argument."""

    status = 400
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    default_code = "context_length_exceeded"


class AuthenticationError(AtomeshError):
    status = 401
    type = "invalid_api_key"
    default_code = "invalid_api_key"


class PermissionDeniedError(AtomeshError):
    status = 403
    type = "permission_denied"
    default_code = "permission_denied"


class NotFoundError(AtomeshError):
    status = 404
    type = "not_found"
    default_code = "not_found"


class ModelNotFoundError(NotFoundError):
    type = "model_not_found"
    default_code = "model_not_found"


class MethodNotAllowedError(AtomeshError):
    status = 405
    type = "method_not_allowed"
    default_code = "method_not_allowed"


class RequestTimeoutError(AtomeshError):
    status = 408
    type = "request_timeout"
    default_code = "request_timeout"


class RequestTooLargeError(AtomeshError):
    status = 413
    type = "request_too_large"
    default_code = "request_too_large"


class HeadTooLargeError(RequestTooLargeError):
    """A request's head or trailers, before anybody looked at it."""

    status = 431


class UnsupportedMediaTypeError(AtomeshError):
    status = 415
    type = "unsupported_media_type"
    default_code = "unsupported_media_type"


class RateLimitError(AtomeshError):
    """The client has had its share for now; `retry_after_s` (1 to 120) says when to come back."""

    status = 429
    type = "rate_limit_exceeded"
    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int = 1, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = min(max(retry_after_s, 1), 120)


class EngineError(AtomeshError):
    """The engine failed on this request; the engine itself goes on."""


class FatalRequestError(EngineError):
    """Workers died of this request, for all that one can know: it is not to be sent again."""


class UnsupportedFeatureError(AtomeshError):
    status = 501
    type = "not_implemented"
    default_code = "not_implemented"


class ServiceUnavailableError(AtomeshError):
    """Nothing can serve the request now; `retry_after_s` (1 to 120) says when to come back."""

    status = 503
    type = "service_unavailable_error"
    default_code = "service_unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = min(max(retry_after_s, 1), 120)


class DeadlineExceededError(AtomeshError):
    status = 504
    type = "deadline_exceeded"
    default_code = "deadline_exceeded"
