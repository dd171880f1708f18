"""Messages to token ids, for the chat and for /tokenize."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.openai.chat_request import ChatMessage, parse_messages
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.tool_calls.preamble import Message, count_characters, with_tools_in_text
from atomesh.frontend.tool_calls.registry import load_dialect

if TYPE_CHECKING:
    from atomesh.frontend.templates.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What of a request decides its prompt; null means the default.

    One that is to be truncated may be longer than the context.
    """

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    add_special_tokens: bool | None
    template_kwargs: Mapping[str, Any] | None
    is_truncated: bool = False
    tools: Sequence[Mapping[str, Any]] = ()


async def encode_chat(frontend: Frontend, model: ServedModel, prompt: ChatPrompt) -> list[int]:
    """The prompt's token ids. Raises InvalidRequestError or ContextLengthError."""
    template = _require_template(model)
    _check_kwargs(prompt.template_kwargs or {}, frontend.options.chat_template_kwargs)
    continues = bool(prompt.continue_final_message)
    generates = not continues if prompt.add_generation_prompt is None else prompt.add_generation_prompt
    if continues and generates:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt cannot both be true; choose one",
            param="continue_final_message",
        )
    max_model_len = model.service.describe().max_model_len
    _check_number(prompt.messages, max_model_len)
    messages = _in_dialect(parse_messages(prompt.messages), model)
    shown = prompt.tools
    if not template.takes_tools:
        messages = with_tools_in_text(messages, shown, load_dialect(model.tool_dialect))
        shown = ()
    characters = sum(len(message["content"]) for message in messages) + count_characters(shown)
    if not prompt.is_truncated:
        frontend.bounds.check_characters(characters, model.tokenizer, max_model_len, param="messages")
    token_ids = await frontend.texts.run_in_thread(
        characters,
        lambda: template.encode(
            messages,
            model.tokenizer,
            add_generation_prompt=generates,
            continue_final_message=continues,
            tools=shown,
            template_kwargs=prompt.template_kwargs,
        ),
    )
    return _with_bos(token_ids, model) if prompt.add_special_tokens else token_ids


def _in_dialect(messages: Sequence[Message], model: ServedModel) -> Sequence[Message]:
    dialect = model.reasoning_dialect
    return messages if dialect is None else [dialect.adapt_message(message) for message in messages]


def _require_template(model: ServedModel) -> "ChatTemplate":
    if model.chat_template is None:
        raise InvalidRequestError(
            f"the model {model.name!r} has no chat template; use /v1/completions",
            param="model",
        )
    return model.chat_template


def _check_number(messages: Sequence[ChatMessage], max_model_len: int) -> None:
    """A message takes at least one token, even where it is to be truncated."""
    if len(messages) > max_model_len:
        raise ContextLengthError(
            f"there are {len(messages)} messages, each of at least one token; this model's maximum context "
            f"length is {max_model_len} tokens: send fewer messages",
            param="messages",
        )


def _check_kwargs(kwargs: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for name in kwargs:
        if name not in allowed:
            raise InvalidRequestError(
                f"chat_template_kwargs has {name[:40]!r}; allowed are {', '.join(sorted(allowed))}",
                param=f"chat_template_kwargs.{name[:40]}",
            )


def _with_bos(token_ids: list[int], model: ServedModel) -> list[int]:
    bos = model.tokenizer.bos_token_id
    return token_ids if bos is None or token_ids[:1] == [bos] else [bos, *token_ids]
