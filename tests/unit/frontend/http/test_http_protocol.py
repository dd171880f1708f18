"""What a connection is told when it is made."""

import asyncio
import socket

from atomesh.frontend.http.http_protocol import send_at_once


def test_accepted_connections_send_at_once() -> None:
    """A head and its body are two writes: with Nagle's algorithm the second waits for a delayed ACK."""

    async def scenario() -> list[int]:
        options: list[int] = []

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                send_at_once(transport)
                sock = transport.get_extra_info("socket")
                options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = await asyncio.get_running_loop().create_server(Noting, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            async with asyncio.timeout(5):
                while not options:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            writer.close()
            server.close()
        return options

    assert [bool(option) for option in asyncio.run(scenario())] == [True]
