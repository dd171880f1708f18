"""That a worker is gone, told apart from what a worker says."""

from atomesh.errors import ServiceUnavailableError


class WorkerLostError(ServiceUnavailableError):
    """The connection to the worker is no more, and with it all that was asked over it.

    `why` is for the operator, where more is known than that nobody answers.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__("the worker was lost; send the request again")
        self.why = why
