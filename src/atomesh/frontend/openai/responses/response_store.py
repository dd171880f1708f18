"""Responses kept in SQLite: in memory, or in a file that outlives the process. One thread works on it."""

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.frontend.openai.responses.items import Item
from atomesh.frontend.openai.responses.stored_response import StoredResponse, StoreLimits

T = TypeVar("T")

_VERSION = 1
_SCHEMA = f"""
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    used INTEGER NOT NULL,
    size INTEGER NOT NULL,
    is_live INTEGER NOT NULL,
    body BLOB NOT NULL,
    items BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE items (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX by_response ON items (response);
CREATE INDEX by_use ON responses (used);
CREATE INDEX by_life ON responses (is_live) WHERE is_live;
PRAGMA user_version = {_VERSION};
"""
# From a response back to the first of its conversation, all of one owner; the first comes first.
_LINE = """
WITH RECURSIVE line (id, previous, size, place) AS (
    SELECT id, previous, size, 0 FROM responses WHERE id = :id AND owner = :owner
    UNION ALL
    SELECT r.id, r.previous, r.size, line.place + 1 FROM responses r JOIN line ON r.id = line.previous
    WHERE r.owner = :owner AND line.place < :limit
)
SELECT id, previous, size FROM line ORDER BY place DESC
"""
_HOLDERS = """
SELECT DISTINCT r.id, r.previous, r.size FROM items i JOIN responses r ON r.id = i.response
WHERE i.owner = ? AND i.id = ?
"""
_LONGEST_LINE = 4096
_BYTES_PER_ITEM = 256  # of the table by which items are found
_LOST = {"code": "server_error", "message": "the server ended before the answer was complete; ask again"}


@dataclass(frozen=True, slots=True)
class _Row:
    """What is known of a response before it is read."""

    id: str
    previous: str | None
    size: int


class ResponseStore:
    """Raises ConfigurationError when the file cannot be opened, is another's, or is in use.

    An older response of a conversation counts as used whenever a newer one is: what is let go of first is
    never what something kept still needs.
    """

    def __init__(self, path: Path | None, limits: StoreLimits) -> None:
        """In memory where `path` is None."""
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atomesh-responses")
        self._database = _open(path)
        self._count, self._bytes, self._uses = self._measure()

    async def put(self, response: StoredResponse) -> None:
        """Under its id, in place of what was there; what no longer fits goes."""
        await self._run(lambda: self._put(response))

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        return await self._run(lambda: self._get(owner, response_id))

    async def conversation(self, owner: str, response_id: str) -> list[StoredResponse] | None:
        """From its first response to this one; None where one of them is not kept.

        Raises InvalidRequestError where they are too much for one request.
        """
        return await self._run(lambda: self._conversation(owner, response_id))

    async def find_items(self, owner: str, names: Sequence[str]) -> dict[str, Item]:
        """Those that there are, by id. Raises InvalidRequestError as `conversation`."""
        return await self._run(lambda: self._find_items(owner, names))

    async def delete(self, owner: str, response_id: str) -> bool:
        """Whether it was there."""
        return await self._run(lambda: self._delete(owner, response_id))

    def close(self) -> None:
        """What was put is written before this returns."""
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(work))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What fails, if only when it is written in the end, has changed nothing: neither rows nor counts."""
        before = self._count, self._bytes, self._uses
        try:
            with self._database:
                yield
        except BaseException:
            self._count, self._bytes, self._uses = before
            raise

    def _measure(self) -> tuple[int, int, int]:
        row = self._database.execute("SELECT COUNT(*), SUM(size), MAX(used) FROM responses").fetchone()
        return row[0], row[1] or 0, row[2] or 0

    def _put(self, response: StoredResponse) -> None:
        body, items = msgspec.json.encode(response.body), msgspec.json.encode(response.items)
        names = {item["id"] for item in response.turn()}
        size = len(body) + len(items) + _BYTES_PER_ITEM * len(names)
        with self._transaction():
            self._forget("id = ?", response.id)
            self._uses += 1
            row = (
                response.id,
                response.owner,
                response.previous,
                self._uses,
                size,
                response.is_live,
                body,
                items,
            )
            self._database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._database.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?)",
                [(response.owner, name, response.id) for name in names],
            )
            self._count, self._bytes = self._count + 1, self._bytes + size
            if response.previous is not None:
                self._use(self._line(response.owner, response.id))
            while self._count > self._limits.responses or self._bytes > self._limits.num_bytes:
                self._forget("id = (SELECT id FROM responses ORDER BY used LIMIT 1)")

    def _forget(self, where: str, *values: str) -> int:
        query = f"DELETE FROM responses WHERE {where} RETURNING size"  # noqa: S608  words of ours alone
        sizes = [size for (size,) in self._database.execute(query, values)]
        self._count, self._bytes = self._count - len(sizes), self._bytes - sum(sizes)
        return len(sizes)

    def _get(self, owner: str, response_id: str) -> StoredResponse | None:
        query = "SELECT body, items FROM responses WHERE id = ? AND owner = ?"
        row = self._database.execute(query, (response_id, owner)).fetchone()
        return None if row is None else _read(owner, *row)

    def _find_items(self, owner: str, names: Sequence[str]) -> dict[str, Item]:
        wanted = Counter(names)
        holders = {_Row(*row) for name in wanted for row in self._database.execute(_HOLDERS, (owner, name))}
        found = {
            item["id"]: item
            for response in self._read_all(owner, holders, "input")
            for item in response.turn()
            if item["id"] in wanted
        }
        size = sum(len(msgspec.json.encode(item)) * wanted[name] for name, item in found.items())
        _check_size(size, self._limits.named_bytes, "input")
        return found

    def _line(self, owner: str, response_id: str) -> list[_Row]:
        values = {"id": response_id, "owner": owner, "limit": _LONGEST_LINE}
        return [_Row(*row) for row in self._database.execute(_LINE, values)]

    def _conversation(self, owner: str, response_id: str) -> list[StoredResponse] | None:
        line = self._line(owner, response_id)
        if not line or line[0].previous is not None:
            return None
        responses = self._read_all(owner, line, "previous_response_id")
        with self._transaction():
            self._use(line)
        return responses

    def _read_all(self, owner: str, rows: Collection[_Row], param: str) -> list[StoredResponse]:
        """Raises InvalidRequestError before anything is read when it is too much for one request."""
        _check_size(sum(row.size for row in rows), self._limits.request_bytes, param)
        return [found for row in rows if (found := self._get(owner, row.id)) is not None]

    def _use(self, line: Sequence[_Row]) -> None:
        """The newest first, so that the oldest is the last to go."""
        for row in reversed(line):
            self._uses += 1
            self._database.execute("UPDATE responses SET used = ? WHERE id = ?", (self._uses, row.id))

    def _delete(self, owner: str, response_id: str) -> bool:
        with self._transaction():
            return bool(self._forget("id = ? AND owner = ?", response_id, owner))


def _check_size(size: int, limit: int, param: str) -> None:
    if size > limit:
        raise InvalidRequestError(
            f"{param}: what it stands for has {size} bytes; the limit is {limit}: begin a new conversation",
            param=param,
        )


def _read(owner: str, body: bytes, items: bytes) -> StoredResponse:
    return StoredResponse(owner, msgspec.json.decode(body), msgspec.json.decode(items))


def check_response_store(path: Path | None) -> None:
    """Raises ConfigurationError for a file that could not be used."""
    if path is not None:
        _open(path).close()


def _open(path: Path | None) -> sqlite3.Connection:
    try:
        return _prepared(":memory:" if path is None else _own_file(path))
    except (OSError, sqlite3.Error, msgspec.DecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"--response-store {path} cannot be used: {told}; name a file of its own, in a directory that "
            "can be written, that no other gateway has"
        ) from error


def _own_file(path: Path) -> str:
    """Readable by this user alone: it holds what clients said."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return str(path)


def _prepared(name: str) -> sqlite3.Connection:
    database = sqlite3.connect(name, timeout=1.0, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA secure_delete = ON")  # what a client deletes is not left in the file
        version = database.execute("PRAGMA user_version").fetchone()[0]
        tables = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            database.executescript(_SCHEMA)
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, and this program writes {_VERSION}")
        _end_lost(database)
    except BaseException:
        database.close()
        raise
    return database


def _end_lost(database: sqlite3.Connection) -> None:
    """What ran when the process before this one ended has failed."""
    with closing(database.execute("SELECT id, body FROM responses WHERE is_live")) as rows:
        lost = [(row[0], msgspec.json.decode(row[1], type=dict[str, Any])) for row in rows]
    with database:
        for response_id, body in lost:
            ended = msgspec.json.encode({**body, "status": "failed", "error": _LOST})
            query = "UPDATE responses SET is_live = 0, body = ?, size = size + ? WHERE id = ?"
            database.execute(query, (ended, len(ended) - len(msgspec.json.encode(body)), response_id))
