"""GET /tokenizer_info, as vLLM has it: what a client needs to make prompts itself and tokenise them here."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.served_model import ServedModel

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_CLASS = "PreTrainedTokenizerFast"  # with which transformers would read the same tokenizer


def tokenizer_info_route(frontend: Frontend) -> Route:
    async def show(request: Request) -> Response:
        """Of the model that the query names, else of the first."""
        model = frontend.seen_from(request.scope).find_model(request.query_params.get("model"))
        if model.is_relayed:
            raise InvalidRequestError(
                f"the tokens of {model.name} are its own server's; ask it, or name another model",
                param="model",
            )
        return Response(encode_json(_describe(model)), media_type="application/json")

    return Route("/tokenizer_info", show)


def _describe(model: ServedModel) -> dict[str, Any]:
    tokenizer, description = model.tokenizer, model.service.describe()
    named = {name: tokenizer.named_tokens.get(name) for name in _NAMES}
    return {
        "tokenizer_class": _CLASS,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": description.max_model_len,
        **named,
        "additional_special_tokens": sorted(tokenizer.special_tokens.keys() - set(named.values())),
        "chat_template": None if model.chat_template is None else model.chat_template.default_source,
    }
