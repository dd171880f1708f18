"""That a worker is gone, told apart from what a worker says."""

from atomesh.errors import ServiceUnavailableError


class WorkerLostError(ServiceUnavailableError):
    """The connection to the worker is no more, and with it all that was asked over it."""

    def __init__(self) -> None:
        super().__init__("the worker was lost; send the request again")
