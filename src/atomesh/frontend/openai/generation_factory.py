"""From token ids and sampling parameters to a generation that can run."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.generation import Generation, TextOptions
from atomesh.frontend.openai.answer_head import AnswerHead, fingerprint
from atomesh.frontend.openai.sampling_fields import SamplingFields
from atomesh.frontend.resolve import encode_bad_words, resolve_sampling
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.text.text_pool import sum_sizes
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingParams
from atomesh.protocol.worker import ModelDescription


@dataclass(frozen=True, slots=True)
class GenerationFactory:
    """One call's generations; those of several prompts differ in their prompt and request id only."""

    answer_id: str
    model: ServedModel
    description: ModelDescription
    params: SamplingParams
    fields: SamplingFields
    bad_words: tuple[tuple[int, ...], ...]

    def make(self, prompt: int, token_ids: list[int], param: str) -> Generation:
        """The generation of the prompt at place `prompt`, which came in the field `param`.

        Raises ContextLengthError, InvalidRequestError.
        """
        params = self.params
        request = GenerationRequest(
            request_id=f"{self.answer_id}-{prompt}",
            prompt_token_ids=token_ids,
            sampling=resolve_sampling(
                params,
                self.model.tokenizer,
                self.description,
                len(token_ids),
                bad_words=self.bad_words,
                param=param,
            ),
            n=params.n,
            priority=self.fields.priority or 0,
            cache_salt=self.fields.cache_salt or "",
        )
        options = TextOptions(
            params.stop_strings,
            params.include_stop_str_in_output,
            params.skip_special_tokens,
            params.min_tokens,
        )
        return Generation(request, options, self.model.tokenizer, self.model.service)

    def head(self, kind: str) -> AnswerHead:
        return AnswerHead(self.answer_id, kind, int(time()), self.model.name, fingerprint(self.description))


async def make_factory(
    frontend: Frontend, kind: str, model: ServedModel, params: SamplingParams, fields: SamplingFields
) -> GenerationFactory:
    """For an answer of the id's `kind`. Raises InvalidRequestError."""
    description = model.service.describe()
    words = sum_sizes(params.bad_words or ())
    bad_words = await frontend.texts.run(
        words, lambda: encode_bad_words(params, model.tokenizer, description)
    )
    return GenerationFactory(mint_id(kind), model, description, params, fields, bad_words)


def mint_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def count_kept(limit: int | None, max_model_len: int) -> int | None:
    """How many of a prompt's last ids truncate_prompt_tokens keeps; null keeps all.

    −1 keeps as many as leave room for one more token.
    """
    if limit is None:
        return None
    if limit != -1 and not 1 <= limit <= max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {limit}; it must be -1 or lie in [1, {max_model_len}]",
            param="truncate_prompt_tokens",
        )
    return max_model_len - 1 if limit == -1 else limit


def truncate(token_ids: list[int], limit: int | None, max_model_len: int) -> list[int]:
    kept = count_kept(limit, max_model_len)
    return token_ids if kept is None else token_ids[-kept:]


def check_prompt_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequestError for an empty prompt or an id that the model does not have."""
    if not token_ids:
        raise InvalidRequestError(f"{param} has no tokens; send a non-empty one", param=param)
    for bound in (min(token_ids), max(token_ids)):
        if not 0 <= bound < vocab_size:
            raise InvalidRequestError(
                f"{param} has the id {bound}; this model's ids lie in [0, {vocab_size - 1}]", param=param
            )
