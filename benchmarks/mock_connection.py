"""The socket side of a mock engine's HTTP: whole requests are heeded one by one."""

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from mock_http import MockRequest, RequestReader


class RequestConnection(asyncio.Protocol, ABC):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._reader = RequestReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            requests = self._reader.feed(data)
        except ValueError:  # a probe for another protocol, as gRPC
            self.transport.close()
            return
        for request in requests:
            self.heed(request)

    @abstractmethod
    def heed(self, request: MockRequest) -> None:
        """Answer it, now or later."""
