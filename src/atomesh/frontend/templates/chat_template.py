"""Messages to the prompt that a chat model was trained on, by the template that came with it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from atomesh.errors import InvalidRequestError, ModelFileError
from atomesh.frontend.templates.content_mask import ContentMask
from atomesh.frontend.templates.limits import MAX_TEMPLATE_BYTES
from atomesh.frontend.templates.renderer import TemplateError, TemplateRenderer
from atomesh.frontend.templates.sources import named_tokens_of, read_override, template_sources

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer
    from atomesh.model_files.checkpoint import Checkpoint

Message = Mapping[str, Any]

_DEFAULT, _TOOL_USE = "default", "tool_use"
_END_OF_FINAL = "\udfff"  # no mask, and in no valid text
_PROBE = "atomesh-probe"
_TOOLS = re.compile(r"\btools\b")


class RenderOptions(TypedDict, total=False):
    """`add_generation_prompt` (True): end with the opening of the assistant's answer.

    `continue_final_message` (False): end within the last message, for the model to go on with; no opening.
    `tools`: the functions that may be called. `template_kwargs`: further variables for the template.
    """

    add_generation_prompt: bool
    continue_final_message: bool
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None


def load_chat_template(checkpoint: "Checkpoint", override: Path | None = None) -> "ChatTemplate | None":
    """The template of the model's files, or that of the file `override`; None where there is none.

    Raises ModelFileError for one that is too large or not valid, or breaks the sandbox or its limits on a
    greeting.
    """
    sources = template_sources(checkpoint, override)
    if not sources:
        return None
    for name, source in sources.items():
        if len(source.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
            raise ModelFileError(
                f"the chat template {name!r} has more than {MAX_TEMPLATE_BYTES} bytes, the limit; "
                "name another with --chat-template"
            )
    return ChatTemplate(sources, named_tokens_of(checkpoint))


def check_override(path: Path) -> None:
    """Raises as `load_chat_template` does with this `override`; a template's own variables may be missing."""
    ChatTemplate(read_override(path), {}).close()


class ChatTemplate:
    """Safe to use from several threads. Templates run in a process of their own, within limits."""

    def __init__(self, sources: Mapping[str, str], named_tokens: Mapping[str, str]) -> None:
        """`sources` by name: "default", and "tool_use" if any; `named_tokens`: bos_token and its like."""
        self._sources = sources
        self._named_tokens = named_tokens
        self.takes_tools = any(map(_TOOLS.search, sources.values()))  # whether any reads what it is given
        self._renderer = TemplateRenderer(sources)
        self._mask: tuple[Tokenizer, ContentMask] | None = None
        self._reads_text, self._reads_parts = self._probe("text"), self._probe("parts")

    @property
    def texts(self) -> tuple[str, ...]:
        """Of all templates that the model has."""
        return tuple(self._sources.values())

    @property
    def default_source(self) -> str:
        """The template's text, where no tools are named."""
        return self._sources[self._name(None)]

    def render(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """The prompt as text. Raises InvalidRequestError with the template's own words where it refuses."""
        return self._render_flat(messages, options, lambda value: value)

    def encode(
        self, messages: Sequence[Message], tokenizer: "Tokenizer", **options: Unpack[RenderOptions]
    ) -> list[int]:
        """The prompt's token ids; its special tokens are those that the template wrote, never the caller.

        Raises InvalidRequestError as `render` does.
        """
        mask = self._mask_for(tokenizer)
        return tokenizer.encode_masked(self._render_flat(messages, options, mask.apply), mask.unmask)

    def close(self) -> None:
        """End the template's process; it also ends with this object."""
        self._renderer.close()

    def _render_flat(self, messages: Sequence[Message], options: RenderOptions, guard: Any) -> str:
        """As `_render`; what is nested too deeply to be walked through is refused."""
        try:
            return self._render(messages, options, guard)
        except RecursionError:
            raise InvalidRequestError(
                "messages or tools are nested too deeply; send flatter ones", param="messages"
            ) from None

    def _render(self, messages: Sequence[Message], options: RenderOptions, guard: Any) -> str:
        final = options.get("continue_final_message", False)
        tools = options.get("tools") or None
        adapted = [self._adapt(message) for message in guard(list(messages))]
        text = self._renderer.render(
            self._name(tools),
            {
                **self._named_tokens,
                **guard(dict(options.get("template_kwargs") or {})),
                "messages": _with_end_marked(adapted) if final else adapted,
                "tools": guard(tools),
                "documents": None,
                "add_generation_prompt": options.get("add_generation_prompt", True) and not final,
            },
        )
        return _up_to_end(text) if final else text

    def _name(self, tools: object) -> str:
        if tools and _TOOL_USE in self._sources:
            return _TOOL_USE
        return _DEFAULT if _DEFAULT in self._sources else next(iter(self._sources))

    def _mask_for(self, tokenizer: "Tokenizer") -> ContentMask:
        if self._mask is None or self._mask[0] is not tokenizer:
            source = "\n".join(self._sources.values())
            self._mask = (tokenizer, ContentMask(tokenizer.special_tokens, source))
        return self._mask[1]

    def _adapt(self, message: Message) -> dict[str, Any]:
        """Without nulls, which templates take for text; with content in the form that the template reads."""
        adapted = {key: value for key, value in message.items() if value is not None}
        content = adapted.get("content")
        if isinstance(content, str) and self._reads_parts and not self._reads_text:
            adapted["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and not self._reads_parts and all(map(_is_text_part, content)):
            adapted["content"] = "\n".join(part["text"] for part in content)
        return adapted

    def _probe(self, form: str) -> bool:
        """Whether the template shows content that comes as one text, or as a list of parts."""
        content: Any = _PROBE if form == "text" else [{"type": "text", "text": _PROBE}]
        messages = [{"role": "user", "content": content}]
        variables = {**self._named_tokens, "messages": messages, "tools": None, "add_generation_prompt": True}
        try:
            text = self._renderer.render(self._name(None), variables)
        except TemplateError as error:
            if error.is_hostile:
                self.close()
                raise ModelFileError(
                    f"{error.message}; name another template with --chat-template"
                ) from error
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _with_end_marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The final message's text with a mark after it, and a space to show whether the template trims."""
    mark = _END_OF_FINAL + " "
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + mark}]
    if isinstance(content, list) and content and _is_text_part(content[-1]):
        marked = {**content[-1], "text": content[-1]["text"] + mark}
        return [*messages[:-1], {**messages[-1], "content": [*content[:-1], marked]}]
    raise InvalidRequestError(
        "continue_final_message is set, but the last message does not end with text; add text to go on with",
        param="continue_final_message",
    )


def _up_to_end(text: str) -> str:
    before, mark, after = text.rpartition(_END_OF_FINAL)
    if not mark:
        raise InvalidRequestError(
            "continue_final_message is set, but the chat template leaves the last message out; unset it",
            param="continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()
