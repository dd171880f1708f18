"""A chat template double that opens the assistant's thoughts, or with enable_thinking false closes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate

OPEN, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"


class ThinkingChatTemplate(PlainChatTemplate):
    """As the plain one, with `reasoning_content` before contents; what it was given last is in `seen`.

    One that does not open leaves all thoughts to the model.
    """

    takes_tools = True

    def __init__(self, *, opens: bool = True) -> None:
        self._opens = opens
        self.seen: dict[str, Any] = {}

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: ByteTokenizer,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: object = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        self.seen = {"messages": messages, "tools": tools, "kwargs": dict(template_kwargs or {})}
        ids = super().encode(
            [_with_thoughts(message) for message in messages],
            tokenizer,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
        )
        if not self._opens or not add_generation_prompt or continue_final_message:
            return ids
        thinks = self.seen["kwargs"].get("enable_thinking") is not False
        return [*ids, *(OPEN if thinks else CLOSED).encode()]


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not message.get("reasoning_content"):
        return message
    return {**message, "content": f"{OPEN}{message['reasoning_content']}\n</think>\n\n{message['content']}"}
