"""POST /v1/completions."""

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
from atomesh.frontend.openai.generation_factory import GenerationFactory, check_prompt_ids, mint_id, truncate
from atomesh.frontend.openai.sampling_fields import check_answers


class Completions(Endpoint[CompletionRequest]):
    path = "/v1/completions"

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, CompletionRequest)

    async def _plan(self, call: Call, request: CompletionRequest) -> Plan:
        model = self._frontend.find_model(request.model)
        params = parse_completion_sampling(request, model.sampling_defaults)
        prompts = split_prompts(request.prompt)
        check_answers(len(prompts), params.n, self._frontend.options)
        factory = GenerationFactory(mint_id("cmpl"), model, model.service.describe(), params, request)
        answers = [
            await self._answer(factory, request, index, prompt) for index, prompt in enumerate(prompts)
        ]
        renderer = CompletionRenderer(request, factory.head("text_completion"), answers, model.tokenizer)
        return Plan(model, [answer.generation for answer in answers], renderer, bool(request.stream))

    async def _answer(
        self, factory: GenerationFactory, request: CompletionRequest, index: int, prompt: Prompt
    ) -> PromptAnswer:
        tokenizer, max_model_len = factory.model.tokenizer, factory.description.max_model_len
        param = f"prompt[{index}]" if index else "prompt"
        token_ids = prompt if isinstance(prompt, list) else await self._encode(factory, request, prompt)
        check_prompt_ids(token_ids, factory.description.vocab_size, param)
        kept = truncate(token_ids, request.truncate_prompt_tokens, max_model_len)
        generation = factory.make(index, kept)
        if not request.echo:
            return PromptAnswer(generation, None)
        if isinstance(prompt, str) and len(kept) == len(token_ids):
            return PromptAnswer(generation, prompt)
        skip = request.skip_special_tokens is not False
        return PromptAnswer(generation, tokenizer.decode(kept, skip_special_tokens=skip))

    async def _encode(self, factory: GenerationFactory, request: CompletionRequest, text: str) -> list[int]:
        tokenizer = factory.model.tokenizer
        self._frontend.bounds.check_characters(len(text), tokenizer, factory.description.max_model_len)
        add_special_tokens = request.add_special_tokens is not False
        return await self._frontend.texts.run(
            len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )
