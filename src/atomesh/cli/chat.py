"""`atomesh chat`: talk with a model in the terminal."""

import asyncio
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from atomesh.bench.completion_stream import CompletionStream, Piece
from atomesh.bench.conversation import ChatParams, Conversation, printable, speed_line
from atomesh.bench.failures import RequestFailed
from atomesh.bench.openai_client import OpenAIClient
from atomesh.bench.readiness import choose_model
from atomesh.clock import Clock, MonotonicClock

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT
CHAT_PATH = "/v1/chat/completions"
BLOCK_QUOTE = '"""'
HELP = """\
/reset         forget the conversation
/system TEXT   set the system message (alone: show it)
/quit          leave, as does Ctrl-D
Ctrl-C         stop the answer
\"\"\"            begin and end a text of several lines"""


def chat(
    *,
    url: str = "http://127.0.0.1:8000",
    model: str | None = None,
    system: str | None = None,
    temperature: float = 0.2,
    top_p: float = 0.9,
    max_tokens: int = 512,
    api_key: Annotated[str | None, Parameter(env_var="OPENAI_API_KEY")] = None,
) -> int:
    """Talk with a model in the terminal, on any OpenAI-compatible server.

    Lines piped into stdin are asked one by one; stdout then has the answers alone.

    Parameters
    ----------
    url
        Root of the server, with or without /v1.
    model
        Model to talk to; by default the first that the server lists.
    system
        System message to begin with.
    temperature
        Sampling temperature; 0 always takes the likeliest token.
    top_p
        Sample from the likeliest tokens that together have this probability.
    max_tokens
        Longest answer in tokens.
    api_key
        Key to send as a bearer token.
    """
    clock = MonotonicClock()
    client = OpenAIClient(url, api_key=api_key, clock=clock)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    with asyncio.Runner() as runner:
        runner.run(client.__aenter__())
        try:
            chosen = runner.run(choose_model(client, model, on_wait=notes.print))
            params = ChatParams(chosen, temperature, top_p, max_tokens)
            session = ChatSession(client, clock, params, Conversation(system), notes=notes)
            session.greet()
            _converse(session, runner)
        except KeyboardInterrupt:  # while the server was waited for
            return INTERRUPTED
        finally:
            runner.run(client.__aexit__(None, None, None))
    return 0


@dataclass(slots=True)
class ChatSession:
    client: OpenAIClient
    clock: Clock
    params: ChatParams
    conversation: Conversation
    notes: Console
    answers: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))

    def greet(self) -> None:
        self.note(f"{self.params.model} at {self.client.url}. /help lists the commands.")

    def note(self, words: str, style: str = "dim") -> None:
        self.notes.print(Text(printable(words), style=style))

    def command(self, line: str) -> None:
        """Obeys a line that begins with a slash; /quit is the caller's."""
        name, _, rest = line.partition(" ")
        match name:
            case "/reset":
                self.conversation.reset()
                self.note("The conversation is forgotten.")
            case "/system":
                self.conversation.system = rest.strip() or self.conversation.system
                self.note(f"System message: {self.conversation.system or 'none'}")
            case "/help":
                self.note(HELP)
            case _:
                self.note(f"{name} is no command; /help lists them", "red")

    async def answer(self, question: str) -> None:
        """Streams the answer to the terminal; what came of one that was stopped or cut is remembered."""
        stream = CompletionStream()
        shown = AnswerPrinter(self.answers)
        asked = self.clock.now()
        try:
            await self._stream(question, stream, shown)
            shown.end_line()
            self.note(speed_line(stream.result(), asked))
        except RequestFailed as failure:
            shown.end_line()
            self.note(str(failure), "red")
            if "context length" in failure.message:
                self.note("/reset makes room by forgetting the conversation")
        except asyncio.CancelledError:
            shown.end_line()
            came = stream.so_far()
            self.note("stopped" if came is None else f"stopped · {speed_line(came, asked)}")
            raise
        finally:
            if shown.text:
                self.conversation.remember(question, shown.text)

    async def _stream(self, question: str, stream: CompletionStream, shown: "AnswerPrinter") -> None:
        body = self.params.body(self.conversation.messages_with(question))
        async with aclosing(self.client.pieces(CHAT_PATH, body, stream, timeout_s=None)) as pieces:
            async for piece in pieces:
                shown.show(piece)


class AnswerPrinter:
    """Prints an answer as it comes, its reasoning dim and apart; `text` is the answer so far."""

    def __init__(self, console: Console) -> None:
        self.text = ""
        self._console = console
        self._has_thought = False

    def show(self, piece: Piece) -> None:
        if piece.reasoning:
            self._has_thought = True
            self._console.print(Text(printable(piece.reasoning), style="dim"), end="")
        if piece.text:
            if self._has_thought and not self.text:
                self._console.print("\n")
            self.text += piece.text
            self._console.print(Text(printable(piece.text)), end="")
        self._console.file.flush()

    def end_line(self) -> None:
        if self.text or self._has_thought:
            self._console.print()


def _converse(session: ChatSession, runner: asyncio.Runner) -> None:
    while (line := _read_message(session)) is not None:
        if line in ("/quit", "/exit"):
            return
        if line.startswith("/"):
            session.command(line)
        elif line:
            with suppress(KeyboardInterrupt):
                runner.run(session.answer(line))


def _read_message(session: ChatSession) -> str | None:
    """The next message without the space around it, None at the end of input.

    Ctrl-C drops what is half typed.
    """
    try:
        line = _read_line("> ").strip()
        if not line.startswith(BLOCK_QUOTE):
            return line
        block = line.removeprefix(BLOCK_QUOTE)
        while not block.endswith(BLOCK_QUOTE):
            block += "\n" + _read_line(". ")
        return block.removesuffix(BLOCK_QUOTE).strip()
    except EOFError:
        _end_typed_line(session)
        return None
    except KeyboardInterrupt:
        _end_typed_line(session)
        session.note("(Ctrl-D or /quit leaves)")
        return ""


def _end_typed_line(session: ChatSession) -> None:
    if sys.stdin.isatty():
        session.notes.print()


def _read_line(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()
    with suppress(ImportError):
        import readline  # noqa: F401  (line editing and history, where Python has it)
    return input(prompt)
