"""What the text side costs our gateway, by itself: rendering and tokenising a chat, detokenising its answer.

The same functions as the gateway's on the same prompts, in this process, the template's process counted too.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import orjson
from gateway_peers import process_cpu_s

from atomesh.bench.prompts import WORDS
from atomesh.frontend.templates.chat_template import ChatTemplate, load_chat_template
from atomesh.frontend.text.text_stream import TextStream
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.served_process import children_of

Chat = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class TextCost:
    """CPU seconds, of one request but for `detokenise_s`, which is of one token."""

    prompt_tokens: int
    render_s: float
    tokenise_s: float
    detokenise_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What the mock says: the same tokens as text and as ids, each a piece of its own."""

    texts: list[str]
    token_ids: list[int]


class TextSide:
    def __init__(self, path: Path) -> None:
        """Raises ModelFileError; ValueError for a model without a chat template."""
        checkpoint = open_checkpoint(path)
        self.tokenizer: Tokenizer = load_tokenizer(checkpoint)
        template = load_chat_template(checkpoint)
        if template is None:
            raise ValueError(f"the model at {path} has no chat template: name another with --model")
        self.template: ChatTemplate = template
        self.eos_token_ids = self.tokenizer.eos_token_ids
        self.vocab_size = checkpoint.config.vocab_size

    def answer(self, num_tokens: int, seed: int = 0) -> Answer:
        """Tokens of whole characters, none of them special, so that pieces do not depend on each other."""
        ids = self.tokenizer.encode(sentence(10 * num_tokens, Random(seed)), add_special_tokens=False)  # noqa: S311
        plain = [
            one for one in ids if self.tokenizer.token_bytes(one).isascii() and '"' not in self._text(one)
        ]
        kept = plain[:num_tokens]
        return Answer([self._text(one) for one in kept], kept)

    def cost(self, chats: Sequence[Chat], answer: Answer) -> TextCost:
        lengths = [len(self.template.encode(chat, self.tokenizer)) for chat in chats]
        render_s = cpu_s(lambda: [self.template.render(chat) for chat in chats]) / len(chats)
        both_s = cpu_s(lambda: [self.template.encode(chat, self.tokenizer) for chat in chats]) / len(chats)
        told = cpu_s(lambda: [self._tell(answer.token_ids) for _ in chats])
        return TextCost(
            prompt_tokens=round(sum(lengths) / len(lengths)),
            render_s=render_s,
            tokenise_s=max(both_s - render_s, 0.0),
            detokenise_s=told / (len(chats) * len(answer.token_ids)),
        )

    def close(self) -> None:
        self.template.close()

    def _text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode()

    def _tell(self, token_ids: Sequence[int]) -> None:
        stream = TextStream(self.tokenizer)
        for token_id in token_ids:
            stream.push([token_id], False)


def cpu_s(work: Callable[[], object]) -> float:
    """Of this process and its children; of the quieter of two goes."""
    return min(_once_s(work) for _ in range(2))


def _once_s(work: Callable[[], object]) -> float:
    pids = (os.getpid(), *children_of(os.getpid()))
    before = sum(map(process_cpu_s, pids))
    work()
    return sum(map(process_cpu_s, pids)) - before


def sentence(num_words: int, rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


def chats(count: int, num_words: int, seed: int) -> list[Chat]:
    """Different from their first user's word on; about a token a word."""
    rng = Random(seed)  # noqa: S311
    system = {"role": "system", "content": "You are a helpful assistant."}
    return [[system, {"role": "user", "content": sentence(num_words, rng)}] for _ in range(count)]


def body_of(chat: Chat, model: str, max_tokens: int, *, stream: bool) -> str:
    return orjson.dumps(
        {"model": model, "messages": chat, "max_tokens": max_tokens, "temperature": 0.0, "stream": stream}
    ).decode()
