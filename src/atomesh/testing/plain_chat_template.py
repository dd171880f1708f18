"""A chat template double: `<|start|>role\\ncontent<|end|>` for each message, then `<|start|>assistant\\n`."""

from collections.abc import Mapping, Sequence
from typing import Any

from atomesh.testing.byte_tokenizer import END, START, ByteTokenizer


class PlainChatTemplate:
    """Contents are plain text. A truthy template argument `thinking` adds a system message that says so."""

    takes_tools = False

    default_source = "no template"

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
        ids: list[int] = []
        if (template_kwargs or {}).get("thinking"):
            messages = [{"role": "system", "content": "thinking"}, *messages]
        for message in messages:
            text = f"{message['role']}\n{message['content']}"
            ids += [START, *tokenizer.encode(text, add_special_tokens=False, parse_special=False), END]
        if continue_final_message:
            return ids[:-1]
        return [*ids, START, *b"assistant\n"] if add_generation_prompt else ids
