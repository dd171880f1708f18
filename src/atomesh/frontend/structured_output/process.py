"""The process in which strangers' grammars are compiled for the first time: only the kernel can stop that.

`GrammarChecker` speaks to it over its standard input and output. Each grammar is handled under limits of
processor time (SIGPROF ends the process) and of address space. It ends when its input does.
"""

import random
import resource
import signal
import sys
from typing import Any, BinaryIO

from llguidance import LLMatcher

from atomesh.errors import InvalidRequestError
from atomesh.frontend.children.frames import FRAME_HEADER, decode_document, encode_document
from atomesh.frontend.structured_output.limits import COMPILE_CPU_S, COMPILE_MEMORY, LOAD_CPU_S
from atomesh.grammars.compiler import GrammarCompiler, explain_fault
from atomesh.grammars.vocabulary import Vocabulary
from atomesh.protocol.grammar import GrammarSpec

REHEARSED_TOKENS = 24


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer documents until `source` ends."""
    compilers: dict[str, GrammarCompiler] = {}
    while header := source.read(FRAME_HEADER.size):
        (size,) = FRAME_HEADER.unpack(header)
        document = decode_document(source.read(size))
        answer = _load(document, compilers) if "tokens" in document else _check(document, compilers)
        signal.setitimer(signal.ITIMER_PROF, 0)  # first, so that no next question pays for this one
        sink.write(encode_document(answer))
        sink.flush()


def _load(document: dict[str, Any], compilers: dict[str, GrammarCompiler]) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_PROF, LOAD_CPU_S)
    _limit_memory(resource.RLIM_INFINITY)
    vocabulary = Vocabulary(
        tokens=[token.encode("latin-1") for token in document["tokens"]],
        special_ids=document["special_ids"],
        eos_ids=document["eos_ids"],
        encode=lambda _text: [],
    )
    compilers[document["vocabulary"]] = GrammarCompiler(vocabulary)
    return {"fault": ""}


def _check(document: dict[str, Any], compilers: dict[str, GrammarCompiler]) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_PROF, COMPILE_CPU_S)
    _limit_memory(_address_space() + COMPILE_MEMORY)
    spec = GrammarSpec(kind=document["kind"], source=document["source"])
    try:
        return {"fault": _rehearse(compilers[document["vocabulary"]].compile(spec))}
    except InvalidRequestError as error:
        return {"fault": error.message}
    except MemoryError:
        return {"error": "died", "message": ""}


def _rehearse(matcher: LLMatcher) -> str:
    """Why an answer that goes any way at all would break a limit of its steps; empty when one does not."""
    rng = random.Random(0)  # noqa: S311  which way it goes is no secret
    for _ in range(REHEARSED_TOKENS):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return explain_fault(matcher.get_error())
        if not matcher.consume_token(_any_of(allowed, rng)):
            return explain_fault(matcher.get_error())
        if matcher.is_stopped():
            break
    return ""


def _any_of(bits: int, rng: random.Random) -> int:
    """The place of one of the bits that are set: the first from some place on."""
    place = rng.randrange(bits.bit_length())
    later = bits >> place << place
    return (later & -later).bit_length() - 1


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as pages:
        return int(pages.read().split()[0]) * resource.getpagesize()


def _limit_memory(limit: int) -> None:
    if sys.platform != "linux":  # elsewhere the kernel keeps no account of address space
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end closes our input
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
