import asyncio
import resource
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.frontend.openai.responses.response_store import ResponseStore, check_response_store
from atomesh.frontend.openai.responses.stored_response import StoredResponse, StoreLimits

PLENTY = StoreLimits(100, 2**20, 2**20)


def response(name: str, previous: str | None = None, **fields: Any) -> StoredResponse:
    body = {"id": name, "previous_response_id": previous, "status": "completed", "output": [], **fields}
    return StoredResponse("me", body, [{"id": f"msg_{name}", "text": name}])


def with_store(
    test: Callable[[ResponseStore], Awaitable[None]], limits: StoreLimits = PLENTY, path: Path | None = None
) -> None:
    async def run() -> None:
        store = ResponseStore(path, limits)
        try:
            await test(store)
        finally:
            store.close()

    asyncio.run(run())


async def kept(store: ResponseStore, *names: str) -> list[str]:
    return [name for name in names if await store.get("me", name) is not None]


def test_what_was_put_is_there_for_its_owner_alone() -> None:
    async def test(store: ResponseStore) -> None:
        await store.put(response("a"))
        assert await store.get("me", "a") == response("a")
        assert await store.get("you", "a") is None
        assert await store.conversation("you", "a") is None
        assert not await store.delete("you", "a")
        assert await store.delete("me", "a")
        assert not await store.delete("me", "a")
        assert await store.get("me", "a") is None

    with_store(test)


def test_a_later_state_takes_the_place_of_an_earlier_one() -> None:
    async def test(store: ResponseStore) -> None:
        for status in ("queued", "completed"):
            await store.put(response("a", status=status))
        found = await store.get("me", "a")
        assert found is not None
        assert (found.body["status"], found.is_live) == ("completed", False)

    with_store(test, StoreLimits(1, 2**20, 2**20))


def test_a_conversation_is_its_line_of_responses_and_branches_are_apart() -> None:
    async def test(store: ResponseStore) -> None:
        for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("x", "a")):
            await store.put(response(name, previous))
        for leaf, line in (("a", "a"), ("c", "abc"), ("x", "ax")):
            found = await store.conversation("me", leaf)
            assert found is not None
            assert "".join(one.id for one in found) == line
        assert await store.conversation("me", "none") is None
        await store.delete("me", "a")
        assert await store.conversation("me", "c") is None

    with_store(test)


def test_another_s_response_continues_nobody_s_conversation() -> None:
    async def test(store: ResponseStore) -> None:
        await store.put(StoredResponse("you", response("a").body, []))
        await store.put(response("b", "a"))
        assert await store.conversation("me", "b") is None

    with_store(test)


def test_items_are_found_by_their_ids_as_long_as_their_response_is_kept() -> None:
    async def test(store: ResponseStore) -> None:
        said = {"id": "msg_out", "text": "said"}
        await store.put(response("a", output=[said]))
        await store.put(response("b"))
        found = await store.find_items("me", ["msg_out", "msg_b", "msg_none"])
        assert found == {"msg_out": said, "msg_b": {"id": "msg_b", "text": "b"}}
        assert await store.find_items("you", ["msg_out"]) == {}
        await store.put(response("a", output=[said], status="failed"))
        assert list(await store.find_items("me", ["msg_out"])) == ["msg_out"]
        await store.delete("me", "a")
        assert list(await store.find_items("me", ["msg_out", "msg_b"])) == ["msg_b"]

    with_store(test)


def test_a_request_builds_on_so_much_and_no_more() -> None:
    async def test(store: ResponseStore) -> None:
        await store.put(response("a", text="t" * 2000))
        await store.put(response("b", "a", text="t" * 1000))
        assert await store.conversation("me", "a") is not None
        assert len(await store.find_items("me", ["msg_b"])) == 1
        with pytest.raises(
            InvalidRequestError, match="the limit is 3000: begin a new conversation"
        ) as caught:
            await store.conversation("me", "b")
        assert caught.value.param == "previous_response_id"
        with pytest.raises(InvalidRequestError, match="the limit is 3000") as caught:
            await store.find_items("me", ["msg_a", "msg_b"])
        assert caught.value.param == "input"

    with_store(test, StoreLimits(100, 2**20, 3000))


@pytest.mark.parametrize("limits", [StoreLimits(100, 2**20, 3000), StoreLimits(100, 4 * 3000, 2**20)])
def test_an_item_that_is_named_often_counts_as_often(limits: StoreLimits) -> None:
    """A stored response, and the prompt, would have all of its text each time."""

    async def test(store: ResponseStore) -> None:
        await store.put(response("a", output=[{"id": "msg_out", "text": "t" * 900}]))
        assert list(await store.find_items("me", ["msg_out"] * 3)) == ["msg_out"]
        with pytest.raises(InvalidRequestError, match="has 3704 bytes; the limit is 3000"):
            await store.find_items("me", ["msg_out"] * 4)

    with_store(test, limits)


def test_the_unused_go_first() -> None:
    async def test(store: ResponseStore) -> None:
        for name in "abc":
            await store.put(response(name))
        await store.conversation("me", "a")
        await store.put(response("d"))
        assert await kept(store, *"abcd") == ["a", "c", "d"]

    with_store(test, StoreLimits(3, 2**20, 2**20))


def test_a_conversation_keeps_its_beginning() -> None:
    async def test(store: ResponseStore) -> None:
        await store.put(response("a"))
        for name in "xyz":
            await store.put(response(name))
        await store.put(response("b", "a"))
        await store.put(response("c", "b"))
        assert await kept(store, *"axyzbc") == ["a", "z", "b", "c"]
        await store.put(response("q"))
        await store.put(response("r"))
        assert await kept(store, *"abcqr") == ["a", "b", "q", "r"]

    with_store(test, StoreLimits(4, 2**20, 2**20))


def test_bytes_are_bounded_also_after_restarts(tmp_path: Path) -> None:
    path, size = tmp_path / "responses.db", 3_000
    filled = {name: response(name, text="t" * size) for name in "abcdef"}

    async def fill(store: ResponseStore) -> None:
        for name in "abc":
            await store.put(filled[name])
        assert await kept(store, *"abc") == ["a", "b", "c"]

    async def go_on(store: ResponseStore) -> None:
        await store.put(filled["d"])
        assert await kept(store, *"abcd") == ["b", "c", "d"]
        await store.delete("me", "c")
        await store.put(filled["e"])
        assert await kept(store, *"bde") == ["b", "d", "e"]

    limits = StoreLimits(100, 4 * size - 100, 2**20)
    with_store(fill, limits, path)
    with_store(go_on, limits, path)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_did_not_take_is_not_counted(tmp_path: Path) -> None:
    """It would crowd out what is there, and in the end nothing would be left to let go of."""

    async def test(store: ResponseStore) -> None:
        for name in "ab":
            await store.put(response(name))
        with full_disk(), pytest.raises(sqlite3.Error):
            await store.delete("me", "a")
        for name in ("c", "d", "b", "e"):
            with full_disk(), pytest.raises(sqlite3.Error):
                await store.put(response(name, text="t" * 500))
        assert await kept(store, *"abcde") == ["a", "b"]
        await store.put(response("f"))
        assert await kept(store, *"abf") == ["a", "b", "f"]
        await store.put(response("g"))
        assert await kept(store, *"abfg") == ["b", "f", "g"]

    with_store(test, StoreLimits(3, 2**20, 2**20), tmp_path / "responses.db")


def test_a_file_outlives_the_process_and_what_ran_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def before(store: ResponseStore) -> None:
        await store.put(response("a"))
        await store.put(response("b", "a", status="in_progress", error=None))

    async def after(store: ResponseStore) -> None:
        assert await store.get("me", "a") == response("a")
        line = await store.conversation("me", "b")
        assert line is not None
        assert line[1].body["status"] == "failed"
        assert line[1].body["error"]["code"] == "server_error"

    with_store(before, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with_store(after, path=path)
    check_response_store(path)


def test_a_file_that_is_no_store_of_ours_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("dear diary, " * 100)
    for path, why in (
        (other, "not a database"),
        (tmp_path / "none" / "x.db", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(ConfigurationError, match=f"--response-store {path} cannot be used: .*{why}"):
            check_response_store(path)
    assert other.read_text().startswith("dear diary")


@pytest.mark.parametrize("body", [b"\x00\xff", b"[1]"])
def test_a_file_whose_responses_are_damaged_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "responses.db"
    with_store(lambda store: store.put(response("a", status="in_progress")), path=path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE responses SET body = ?", (body,))
    with pytest.raises(ConfigurationError, match="cannot be used"):
        check_response_store(path)


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def test(store: ResponseStore) -> None:
        await store.put(response("a"))
        with pytest.raises(ConfigurationError, match="no other gateway has"):
            check_response_store(path)

    with_store(test, path=path)
    check_response_store(path)


def test_a_file_in_use_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    with_store(lambda store: store.put(response("a")), path=path)

    async def test(_store: ResponseStore) -> None:
        with pytest.raises(ConfigurationError, match="no other gateway has"):
            check_response_store(path)

    with_store(test, path=path)
