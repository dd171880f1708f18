"""Why a request did not succeed: a kind, of which there are few, to be counted; words, to be understood."""


class RequestFailed(Exception):
    """`kind` is one of a handful of labels ("HTTP 503", "error frame 500", "cut stream", "timeout", …).

    `status` is the HTTP status where the server gave one; `param` the field it objected to.
    """

    def __init__(
        self, kind: str, message: str, *, status: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
        self.status = status
        self.param = param
