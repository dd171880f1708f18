"""POST /v1/completions."""

from collections.abc import Sequence
from functools import partial

from atomesh.frontend.context import Frontend
from atomesh.frontend.openai.call import Call, Plan
from atomesh.frontend.openai.completion_renderer import CompletionRenderer, PromptAnswer
from atomesh.frontend.openai.completion_request import (
    CompletionRequest,
    Prompt,
    parse_completion_sampling,
    split_prompts,
)
from atomesh.frontend.openai.endpoint import Endpoint
from atomesh.frontend.openai.generation_factory import (
    GenerationFactory,
    check_prompt_ids,
    count_kept,
    make_factory,
    truncate,
)
from atomesh.frontend.openai.sampling_fields import check_answers
from atomesh.frontend.structured_output.compiling import requested_grammar
from atomesh.frontend.text.fill_in_the_middle import FillInTheMiddle, fill_in_the_middle
from atomesh.frontend.text.text_pool import sum_sizes


class Completions(Endpoint[CompletionRequest]):
    path = "/v1/completions"
    own_fields = frozenset({"suffix"})

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, CompletionRequest)

    async def _plan(self, call: Call, request: CompletionRequest) -> Plan:
        model = call.find_model(request.model)
        params = parse_completion_sampling(request, model.sampling_defaults)
        prompts = split_prompts(request.prompt, may_be_empty=bool(request.suffix))
        check_answers(len(prompts), params.n, self._frontend.options)
        middle = fill_in_the_middle(model.tokenizer) if request.suffix else None
        factory = await make_factory(self._frontend, "cmpl", model, params, request, call.policy)
        factory = factory.obeying(await requested_grammar(self._frontend, model, request))
        if middle is None:
            encoded = await self._encode(factory, request, prompts)
        else:
            factory = factory.ending_with(middle.end_token_ids)
            encoded = await self._encode_around(middle, factory, request, prompts)
        kept = count_kept(request.truncate_prompt_tokens, factory.description.max_model_len)
        most = factory.description.max_model_len if kept is None else kept  # what is longer is refused below
        factory.check_size([min(len(token_ids), most) for token_ids in encoded])
        answers = [
            await self._answer(factory, request, index, prompts, token_ids)
            for index, token_ids in enumerate(encoded)
        ]
        renderer = CompletionRenderer(request, factory.head("text_completion"), answers, model.tokenizer)
        return Plan(model, [answer.generation for answer in answers], renderer, bool(request.stream))

    async def _encode(
        self, factory: GenerationFactory, request: CompletionRequest, prompts: Sequence[Prompt]
    ) -> list[list[int]]:
        tokenizer, together = factory.model.tokenizer, sum_sizes(prompts)
        adds = request.add_special_tokens is not False
        encoded = []
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, list):
                encoded.append(prompt)
                continue
            text = self._bound(factory, request, prompt, _param(index))
            encode = partial(tokenizer.encode, text, add_special_tokens=adds)
            encoded.append(await self._frontend.texts.run(len(text), encode, together=together))
        return encoded

    async def _encode_around(
        self,
        middle: FillInTheMiddle,
        factory: GenerationFactory,
        request: CompletionRequest,
        prompts: Sequence[Prompt],
    ) -> list[list[int]]:
        """Each prompt, what is to be filled in, and the suffix."""
        tokenizer, suffix = factory.model.tokenizer, request.suffix or ""
        adds_bos = request.add_special_tokens is not False
        together, most = sum_sizes([*prompts, suffix]), factory.description.max_model_len
        encoded = []
        for index, prompt in enumerate(prompts):
            size = len(prompt) + len(suffix)
            if isinstance(prompt, str):
                self._frontend.bounds.check_characters(size, tokenizer, most, param=_param(index))
            encode = partial(middle.encode, tokenizer, prompt, suffix, adds_bos=adds_bos)
            encoded.append(await self._frontend.texts.run(size, encode, together=together))
        return encoded

    def _bound(self, factory: GenerationFactory, request: CompletionRequest, text: str, param: str) -> str:
        """What of the text is worth tokenising. Raises ContextLengthError."""
        tokenizer, max_model_len = factory.model.tokenizer, factory.description.max_model_len
        kept = count_kept(request.truncate_prompt_tokens, max_model_len)
        if kept is not None:
            return self._frontend.bounds.keep_end(text, kept, tokenizer)
        self._frontend.bounds.check_characters(len(text), tokenizer, max_model_len, param=param)
        return text

    async def _answer(
        self,
        factory: GenerationFactory,
        request: CompletionRequest,
        index: int,
        prompts: Sequence[Prompt],
        token_ids: list[int],
    ) -> PromptAnswer:
        prompt, param = prompts[index], _param(index)
        check_prompt_ids(token_ids, factory.description.vocab_size, param)
        kept = truncate(token_ids, request.truncate_prompt_tokens, factory.description.max_model_len)
        generation = factory.make(index, kept, param)
        if not request.echo:
            return PromptAnswer(generation, None)
        if isinstance(prompt, str) and len(kept) == len(token_ids):
            return PromptAnswer(generation, prompt)
        skip = request.skip_special_tokens is not False
        decode = partial(factory.model.tokenizer.decode, kept, skip_special_tokens=skip)
        echo = await self._frontend.texts.run(len(kept), decode, together=sum_sizes(prompts))
        return PromptAnswer(generation, echo)


def _param(index: int) -> str:
    return f"prompt[{index}]" if index else "prompt"
