"""How blocks travel to an address: its kind says which connection is used."""

from importlib import import_module

from atomesh.kv_transfer.connection import Connection
from atomesh.protocol.address import Address, TcpAddress, UnixAddress

KINDS: dict[type[Address], str] = {
    UnixAddress: "atomesh.kv_transfer.shm:ShmConnection",
    TcpAddress: "atomesh.kv_transfer.tcp:TcpConnection",
}


def connection_class(address: Address) -> type[Connection]:
    module, _, name = KINDS[type(address)].partition(":")
    found: type[Connection] = getattr(import_module(module), name)
    return found
