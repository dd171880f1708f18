"""Our end of the processes that compile strangers' grammars, and what is known of those seen before."""

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.children.frames import encode_document
from atomesh.frontend.children.limited_child import LimitedChild
from atomesh.frontend.structured_output.limits import (
    COMPILE_CPU_S,
    COMPILE_MEMORY,
    KEPT_VERDICTS,
    MAX_VOCABULARIES,
    MOST_WAITING,
    PROCESSES,
    WAIT_S,
)
from atomesh.grammars.vocabulary import SpellsTokens, Vocabulary, vocabulary_of
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.worker import ModelDescription

_MODULE = "atomesh.frontend.structured_output.process"


class GrammarChecker:
    """Starts its processes with the first grammar, and again after one had to be stopped.

    For one event loop. The processes end with this object, or this process.
    """

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._keys: WeakKeyDictionary[SpellsTokens, dict[tuple[int, ...], str]] = WeakKeyDictionary()
        self._num_keys = 0
        self._asked: dict[bytes, asyncio.Future[str]] = {}

    async def find_fault(self, spec: GrammarSpec, tokenizer: SpellsTokens, model: ModelDescription) -> str:
        """Why answers of the model cannot obey it; empty when they can.

        Whoever asks the same meanwhile waits for the same. Raises ServiceUnavailableError when too many
        grammars wait, or somebody else stopped the process.
        """
        key = self._key(tokenizer, model)
        digest = _digest(key, spec)
        known = self._verdicts.get(digest)
        if known is not None:
            self._verdicts.move_to_end(digest)
            return known
        asked = self._asked.get(digest)
        if asked is None:
            if len(self._asked) >= MOST_WAITING:
                raise ServiceUnavailableError("too many grammars are waiting to be compiled; try again later")
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(self._threads, self._ask, key, spec, tokenizer, model)
            asked.add_done_callback(partial(self._learn, digest))
            self._asked[digest] = asked
        return await asyncio.shield(asked)  # who leaves does not take it from the others

    def close(self) -> None:
        if "_threads" in vars(self):
            self._threads.shutdown(wait=False, cancel_futures=True)
            while not self._checkers.empty():
                self._checkers.get().stop()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(PROCESSES, thread_name_prefix="atomesh-grammars")

    @cached_property
    def _checkers(self) -> "SimpleQueue[_Checker]":
        checkers: SimpleQueue[_Checker] = SimpleQueue()
        for _ in range(PROCESSES):
            checkers.put(_Checker())
        return checkers

    def _learn(self, digest: bytes, asked: "asyncio.Future[str]") -> None:
        del self._asked[digest]
        if asked.cancelled() or asked.exception() is not None:
            return
        self._verdicts[digest] = asked.result()
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)

    def _key(self, tokenizer: SpellsTokens, model: ModelDescription) -> str:
        """Of a vocabulary: never used for another."""
        keys = self._keys.setdefault(tokenizer, {})
        variant = (model.vocab_size, *model.eos_token_ids)
        if variant not in keys:
            self._num_keys += 1
            keys[variant] = str(self._num_keys)
        return keys[variant]

    def _ask(self, key: str, spec: GrammarSpec, tokenizer: SpellsTokens, model: ModelDescription) -> str:
        """In one of our threads, of which there are as many as checkers."""
        checker = self._checkers.get()
        try:
            if not checker.knows(key):
                checker.load(key, vocabulary_of(tokenizer, model.vocab_size, model.eos_token_ids))
            return checker.check(key, spec)
        finally:
            self._checkers.put(checker)


class _Checker:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        self._child: LimitedChild | None = None
        self._known: set[str] = set()

    def knows(self, key: str) -> bool:
        return self._child is not None and self._child.is_alive() and key in self._known

    def load(self, key: str, vocabulary: Vocabulary) -> None:
        if self._child is None or not self._child.is_alive() or len(self._known) >= MAX_VOCABULARIES:
            self.stop()
            self._child, self._known = LimitedChild(_MODULE), set()
        document = {
            "vocabulary": key,
            "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
            "special_ids": list(vocabulary.special_ids),
            "eos_ids": list(vocabulary.eos_ids),
        }
        if "error" in self._say(document):
            raise ServiceUnavailableError("the process that compiles grammars has failed; try again")
        self._known.add(key)

    def check(self, key: str, spec: GrammarSpec) -> str:
        answer = self._say({"vocabulary": key, "kind": spec.kind, "source": spec.source})
        match answer.get("error"):
            case None:
                return str(answer["fault"])
            case "time":
                return f"it takes more than the limit of {COMPILE_CPU_S} s of processor time; simplify it"
            case "killed":
                raise ServiceUnavailableError(
                    "the process that compiles grammars was stopped; send the request again"
                )
        return (
            f"it takes more than the limit of {COMPILE_MEMORY >> 20} MiB of memory, or brings its compiler "
            "down; simplify it"
        )

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def _say(self, document: dict[str, Any]) -> dict[str, Any]:
        assert self._child is not None  # noqa: S101  loaded before
        return self._child.ask(encode_document(document), WAIT_S)


def _digest(key: str, spec: GrammarSpec) -> bytes:
    text = f"{key}\0{spec.kind}\0{spec.source}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
