"""A model in this process, without a server: `LLM(model).generate(prompts)`."""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from atomesh.clock import MonotonicClock
from atomesh.engine.options import DtypeChoice, EngineOptions
from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.frontend.resolve import resolve_sampling
from atomesh.frontend.sampling_defaults import read_sampling_defaults
from atomesh.frontend.structured_output.asked_grammar import outputs_grammar
from atomesh.frontend.structured_output.model_vocabulary import load_vocabulary
from atomesh.frontend.templates.chat_template import ChatTemplate, RenderOptions, load_chat_template
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.resolve import resolve_model
from atomesh.prompt_progress import prompt_progress
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.plain_values import plain
from atomesh.protocol.sampling import SamplingParams
from atomesh.request_output import CompletionOutput, Logprob, RequestOutput, RunningRequest
from atomesh.thread_policy import limit_spinning

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]

DEFAULT_HOME = "~/.cache/atomesh"

StrPath = str | os.PathLike[str]
Prompt = str | Mapping[str, Any]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None
TokenIds = Sequence[int] | Sequence[Sequence[int]]  # or NumPy's and PyTorch's arrays of ints


@dataclass(frozen=True, slots=True)
class _TokenPrompt:
    token_ids: list[int]
    text: str | None = None


class LLM:
    """Owns an engine; for one thread at a time. Close it, or use it in a `with` block, to free its memory."""

    def __init__(
        self,
        model: StrPath,
        dtype: DtypeChoice = "auto",
        *,
        home: StrPath = DEFAULT_HOME,
        chat_template: StrPath | None = None,
        **options: Any,
    ) -> None:
        """`model` is a directory, a GGUF file, a hub id or a name that `atomesh models` lists.

        `home` is where fetched models lie. `options` are the fields of `EngineOptions`.
        Raises ConfigurationError. Where torch is not imported yet, its idle threads are made to sleep soon,
        unless OMP_WAIT_POLICY or GOMP_SPINCOUNT is set.
        """
        name, home_name = _path("model", model), _path("home", home)
        override = None if chat_template is None else Path(_path("chat_template", chat_template))
        engine_options = _engine_options({"dtype": dtype, **options})
        limit_spinning(os.environ)
        from atomesh.engine.build import build_engine  # imports torch
        from atomesh.engine.structured_output.grammars import GrammarCache

        local = resolve_model(name, Path(home_name).expanduser())
        self._checkpoint = open_checkpoint(local.path)
        self._template_override = override
        self._tokenizer = load_tokenizer(self._checkpoint)
        self._defaults = read_sampling_defaults(self._checkpoint)
        self._engine = build_engine(
            self._checkpoint,
            engine_options,
            secret=secrets.token_bytes(32),
            served_name=local.name,
            clock=MonotonicClock(),
        )
        self._engine.obey_grammars(GrammarCache(lambda: load_vocabulary(self._checkpoint, self._tokenizer)))
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        *,
        prompt_token_ids: TokenIds | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """One output a prompt, in order; all prompts run together.

        A prompt is a text, or a mapping with "prompt" or "prompt_token_ids"; or the ids come by themselves,
        as one list or several, or as an array. `sampling_params` are for all prompts, or one each; without
        them `get_default_sampling_params` holds. `use_tqdm` shows a bar on a terminal. A prompt that the
        engine fails on raises nothing, so that the others' answers are kept: its outputs have finish reason
        "error" and say why in `error`. A bad argument raises InvalidRequestError, which is a ValueError, and
        nothing runs.
        """
        return self._run(self._token_prompts(prompts, prompt_token_ids), sampling_params, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """The answer to one conversation, or to each of several, through the model's chat template."""
        template = self._chat_template
        if template is None:
            raise InvalidRequestError(
                "the model has no chat template: give LLM a chat_template, or use generate", param="messages"
            )
        options = RenderOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        ids = [template.encode(each, self._tokenizer, **options) for each in _conversations(messages)]
        prompts = [_TokenPrompt(each, self._tokenizer.decode(each)) for each in ids]
        return self._run(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used where `sampling_params` is None: it follows the model's generation_config.json."""
        return SamplingParams(**self._defaults.told())

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        if "_chat_template" in vars(self) and self._chat_template is not None:
            self._chat_template.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        """Loaded for the first conversation: it starts a process of its own."""
        return load_chat_template(self._checkpoint, self._template_override)

    def _token_prompts(
        self,
        prompts: Prompt | Sequence[Prompt] | None,
        prompt_token_ids: TokenIds | None,
    ) -> list[_TokenPrompt]:
        if prompts is not None and prompt_token_ids is None:
            listed = [prompts] if isinstance(prompts, (str, Mapping)) else _listed("prompts", prompts)
            return [self._token_prompt(prompt) for prompt in listed]
        if prompt_token_ids is not None and prompts is None:
            return [_TokenPrompt(ids) for ids in _id_lists(prompt_token_ids)]
        raise InvalidRequestError("give either prompts or prompt_token_ids", param="prompts")

    def _token_prompt(self, prompt: Prompt) -> _TokenPrompt:
        if isinstance(prompt, str):
            return _TokenPrompt(self._tokenizer.encode(prompt), prompt)
        if not isinstance(prompt, Mapping):
            raise InvalidRequestError(
                f"a prompt is {prompt!r:.80} ({type(prompt).__name__}); it must be a text, or a mapping with "
                "'prompt' or 'prompt_token_ids'",
                param="prompts",
            )
        if "prompt_token_ids" in prompt:
            return _TokenPrompt(_checked_ids(prompt["prompt_token_ids"]), prompt.get("prompt"))
        if "prompt" in prompt:
            return self._token_prompt(prompt["prompt"])
        raise InvalidRequestError(
            f"a prompt has the keys {sorted(prompt)}; it needs 'prompt' or 'prompt_token_ids'",
            param="prompts",
        )

    def _run(
        self, prompts: Sequence[_TokenPrompt], sampling_params: Params, *, use_tqdm: bool
    ) -> list[RequestOutput]:
        default = self.get_default_sampling_params()
        params = _one_each(default if sampling_params is None else sampling_params, len(prompts))
        requests = [self._request(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
        running = {request.request.request_id: request for request in requests}
        try:
            for request in requests:
                self._engine.add(request.request)
            with prompt_progress(len(requests), is_wanted=use_tqdm) as count:
                while self._engine.has_work():
                    count(self._step(running))
        finally:
            for request_id in running:
                self._engine.abort(request_id)
        return [request.output() for request in requests]

    def _step(self, running: Mapping[str, RunningRequest]) -> int:
        """The number of requests that it finished."""
        finished = 0
        for delta in self._engine.step():
            request = running[delta.request_id]
            if request.is_finished:
                continue
            request.take(delta)
            if request.is_finished:
                finished += 1
                # A stop string may have ended it before the engine knows.
                self._engine.abort(delta.request_id)
        return finished

    def _request(self, prompt: _TokenPrompt, params: SamplingParams) -> RunningRequest:
        if not prompt.token_ids:
            raise InvalidRequestError("a prompt is empty; it needs at least one token", param="prompts")
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            raise InvalidRequestError(
                "max_tokens is 0; it must be at least 1 unless prompt_logprobs are asked for",
                param="max_tokens",
            )
        spec = resolve_sampling(params, self._tokenizer, self._engine.description, len(prompt.token_ids))
        if params.structured_outputs is not None:
            spec = replace(spec, grammar=outputs_grammar(params.structured_outputs))
        self._num_requests += 1
        request = GenerationRequest(
            request_id=str(self._num_requests - 1),
            prompt_token_ids=prompt.token_ids,
            sampling=spec,
            n=params.n,
        )
        return RunningRequest(request, params, self._tokenizer, prompt.text)


def _path(name: str, value: object) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigurationError(
            f"{name} is {value!r:.80} ({type(value).__name__}); it must be a str or a path", param=name
        )
    return text


def _engine_options(options: dict[str, Any]) -> EngineOptions:
    known = [field.name for field in fields(EngineOptions)]
    for name in options:
        if name not in known:
            raise ConfigurationError(
                f"LLM has no argument {name!r}; it takes model, home, chat_template, {', '.join(known)}",
                param=name,
            )
    return EngineOptions(**options)


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    listed = _listed("messages", messages)
    single = [each for each in listed if isinstance(each, Mapping)]
    several: list[Sequence[Message]] = [
        _listed("messages", each) for each in listed if not isinstance(each, Mapping)
    ]
    if not all(isinstance(message, Mapping) for conversation in several for message in conversation):
        raise InvalidRequestError(
            "messages must be a list of mappings with 'role' and 'content', or a list of such lists",
            param="messages",
        )
    if single and several:
        raise InvalidRequestError("messages mix one conversation with several", param="messages")
    return [single] if single else several


def _id_lists(token_ids: TokenIds) -> list[list[int]]:
    listed = plain(_listed("prompt_token_ids", plain(token_ids)))
    single = [each for each in listed if isinstance(each, int)]
    several = [_checked_ids(each) for each in listed if not isinstance(each, int)]
    if single and several:
        raise InvalidRequestError("prompt_token_ids mix ids with lists of ids", param="prompt_token_ids")
    return [_checked_ids(single)] if single else several


def _checked_ids(token_ids: object) -> list[int]:
    listed: list[Any] = plain(_listed("prompt_token_ids", plain(token_ids)))
    for token_id in listed:
        if type(token_id) is not int:
            raise InvalidRequestError(
                f"prompt_token_ids has {token_id!r:.80} ({type(token_id).__name__}); ids must be ints",
                param="prompt_token_ids",
            )
    return listed


def _listed(name: str, values: object) -> list[Any]:
    if not isinstance(values, Iterable):
        raise InvalidRequestError(
            f"{name} has {values!r:.80} ({type(values).__name__}) where it needs a list", param=name
        )
    return list(values)


def _one_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    listed: list[Any] = [params] if isinstance(params, Mapping) else _listed("sampling_params", params)
    for each in listed:
        if not isinstance(each, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params has {each!r:.80} ({type(each).__name__}); give SamplingParams(…), or a "
                "list of them, one for each prompt",
                param="sampling_params",
            )
    if len(listed) != count:
        raise InvalidRequestError(
            f"there are {len(listed)} sampling_params for {count} prompts; give one for all or one each",
            param="sampling_params",
        )
    return listed
