"""From token ids and sampling parameters to a generation that can run."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Self

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.generation import Generation, TextOptions
from atomesh.frontend.openai.answer_head import AnswerHead, fingerprint
from atomesh.frontend.openai.sampling_fields import SamplingFields
from atomesh.frontend.reasoning.reasoning_plan import ReasoningPlan
from atomesh.frontend.resolve import fit_to_prompt, resolve_shared
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.text.text_pool import sum_sizes
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.sampling import SamplingParams, SamplingSpec
from atomesh.protocol.worker import ModelDescription


@dataclass(frozen=True, slots=True)
class GenerationFactory:
    """One call's generations; those of several prompts differ in their prompt, its seed and request id only.

    `max_worker_bytes` is what all of them may come to on their way to a worker. `policy` is the client's
    choice of a placement policy, "" for the operator's. `shown_special` are special tokens that the answers'
    text keeps, for the parser that reads it.
    """

    answer_id: str
    model: ServedModel
    description: ModelDescription
    params: SamplingParams
    fields: SamplingFields
    shared: SamplingSpec
    max_worker_bytes: int
    policy: str = ""
    shown_special: frozenset[int] = frozenset()

    def obeying(self, grammar: GrammarSpec | None) -> Self:
        """The same, but its answers obey `grammar`, which has been compiled."""
        if grammar is None:
            return self
        return replace(self, shared=msgspec.structs.replace(self.shared, grammar=grammar))

    def showing(self, special: frozenset[int]) -> Self:
        """The same, but the text of its answers keeps these special tokens, too."""
        return replace(self, shown_special=self.shown_special | special)

    def reading(self, reasoning: ReasoningPlan) -> Self:
        """The same, but with its answers' reasoning as planned, before whatever they must obey."""
        grammar = self.shared.grammar
        if grammar is not None:
            grammar = msgspec.structs.replace(grammar, begins_after=reasoning.before_answer)
        shared = msgspec.structs.replace(self.shared, reasoning=reasoning.spec, grammar=grammar)
        return replace(self, shared=shared, shown_special=self.shown_special | reasoning.shown_tokens)

    def ending_with(self, token_ids: Sequence[int]) -> Self:
        """The same, but these ids end an answer too, unless it is to go on beyond its end."""
        if self.params.ignore_eos:
            return self
        ends = tuple(dict.fromkeys((*self.shared.eos_token_ids, *token_ids)))
        return replace(self, shared=msgspec.structs.replace(self.shared, eos_token_ids=ends))

    def check_size(self, prompt_sizes: Sequence[int]) -> None:
        """For prompts of so many tokens each. Raises InvalidRequestError when their frames are too large.

        Each prompt's frame repeats the call's sampling parameters and its cache_salt.
        """
        bare = len(msgspec.msgpack.encode(self._request(0, [], self.shared)))
        tokens = sum(prompt_sizes)
        total = len(prompt_sizes) * bare + tokens * _id_bytes(self.description.vocab_size)
        if total > self.max_worker_bytes:
            raise InvalidRequestError(
                f"{len(prompt_sizes)} prompts, {tokens} tokens, each with its own copy of {bare} bytes "
                f"of parameters, come to {total} bytes; the limit is {self.max_worker_bytes}: send fewer "
                "prompts at once, or shorter bad_words, logit_bias, allowed_token_ids, stop_token_ids and "
                "cache_salt",
                param="prompt",
            )

    def make(self, prompt: int, token_ids: list[int], param: str) -> Generation:
        """The generation of the prompt at place `prompt`, which came in the field `param`.

        Raises ContextLengthError.
        """
        params = self.params
        sampling = fit_to_prompt(self.shared, params, self.description, len(token_ids), param=param)
        options = TextOptions(
            params.stop_strings,
            params.include_stop_str_in_output,
            params.skip_special_tokens,
            params.min_tokens,
            self.shown_special,
        )
        request = self._request(prompt, token_ids, sampling)
        return Generation(request, options, self.model.tokenizer, self.model.service, prompt)

    def _request(self, prompt: int, token_ids: list[int], sampling: SamplingSpec) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"{self.answer_id}-{prompt}",
            prompt_token_ids=token_ids,
            sampling=sampling,
            n=self.params.n,
            priority=self.fields.priority or 0,
            cache_salt=self.fields.cache_salt or "",
            policy=self.policy,
            session=_session(self.fields.prompt_cache_key),
        )

    def head(self, kind: str) -> AnswerHead:
        return AnswerHead(self.answer_id, kind, int(time()), self.model.name, fingerprint(self.description))


def _session(key: str | None) -> str:
    """Of equal keys the same, and short."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if key else ""


async def make_factory(
    frontend: Frontend,
    kind: str,
    model: ServedModel,
    params: SamplingParams,
    fields: SamplingFields,
    policy: str = "",
) -> GenerationFactory:
    """For an answer of the id's `kind`. Raises InvalidRequestError."""
    description = model.service.describe()
    shared = await frontend.texts.run(
        _work_of(params), lambda: resolve_shared(params, model.tokenizer, description)
    )
    limit = frontend.options.max_worker_bytes
    return GenerationFactory(mint_id(kind), model, description, params, fields, shared, limit, policy)


def _work_of(params: SamplingParams) -> int:
    """The size of the lists that are to be resolved, for the pool of texts."""
    ids = (params.stop_token_ids, params.allowed_token_ids, params.logit_bias)
    return sum_sizes(params.bad_words or ()) + sum(len(each) for each in ids if each is not None)


def _id_bytes(vocab_size: int) -> int:
    """The most that an id takes in msgpack."""
    return 3 if vocab_size <= 2**16 else 5


def mint_id(prefix: str) -> str:
    """`prefix`, a hyphen unless it ends with an underscore, and 32 hexadecimal digits."""
    separator = "" if prefix.endswith("_") else "-"
    return f"{prefix}{separator}{secrets.token_hex(16)}"


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
