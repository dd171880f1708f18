"""POST /v1/chat/completions."""

from atomesh.frontend.context import Frontend
from atomesh.frontend.openai.call import Call, Plan
from atomesh.frontend.openai.chat_prompt import ChatPrompt, encode_chat
from atomesh.frontend.openai.chat_renderer import ChatRenderer
from atomesh.frontend.openai.chat_request import ChatRequest, parse_chat_sampling
from atomesh.frontend.openai.endpoint import Endpoint
from atomesh.frontend.openai.generation_factory import check_prompt_ids, count_kept, make_factory, truncate
from atomesh.frontend.openai.sampling_fields import check_answers


class ChatCompletions(Endpoint[ChatRequest]):
    path = "/v1/chat/completions"

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, ChatRequest)

    async def _plan(self, call: Call, request: ChatRequest) -> Plan:
        model = call.find_model(request.model)
        description = model.service.describe()
        params = parse_chat_sampling(request, model.sampling_defaults)
        check_answers(1, params.n, self._frontend.options)
        prompt = ChatPrompt(
            request.messages,
            request.add_generation_prompt,
            request.continue_final_message,
            request.add_special_tokens,
            request.chat_template_kwargs,
            is_truncated=count_kept(request.truncate_prompt_tokens, description.max_model_len) is not None,
        )
        factory = await make_factory(self._frontend, "chatcmpl", model, params, request, call.policy)
        token_ids = await encode_chat(self._frontend, model, prompt)
        token_ids = truncate(token_ids, request.truncate_prompt_tokens, description.max_model_len)
        check_prompt_ids(token_ids, description.vocab_size, "messages")
        factory.check_size([min(len(token_ids), description.max_model_len)])
        generation = factory.make(0, token_ids, "messages")
        head = factory.head("chat.completion.chunk" if request.stream else "chat.completion")
        renderer = ChatRenderer(request, head, generation, model.tokenizer)
        return Plan(model, [generation], renderer, bool(request.stream))
