"""A request as the engine sees it, and what comes back for it: token ids, never text."""

from typing import Literal

import msgspec

from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket

FinishReason = Literal["stop", "length", "abort", "error"]


LEAST_PATIENCE_S = 0.1  # a hiccup is no reason to compute what is about to come


class PrefixFetch(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of a prompt's first `num_tokens` tokens lies in another worker's prefix cache, and may be had.

    `address` is that worker's KV plane. What has not come `patience_s` after it was asked for is computed;
    the worker takes LEAST_PATIENCE_S for less, and a third of its lease for more.
    """

    ticket: Ticket
    address: str
    num_tokens: int
    patience_s: float


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt, `n` answers. Validated by the frontend; nothing is checked twice but capacity.

    `request_id` is minted by the frontend and unique for its worker connection; a client's own id never gets
    here. `cache_salt` keeps the prefix cache apart for those who do not share it. `policy` and `session` are
    for placement alone: which policy the client chose, and what belongs together for it. `fetch` is
    placement's word to the worker that computes the prompt.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingSpec
    n: int = 1
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    policy: str = ""
    session: str = ""
    fetch: PrefixFetch | None = None


class PrefillLeg(msgspec.Struct, frozen=True, kw_only=True, tag="prefill"):
    """Compute the prompt, sample each choice's first token, and hand the KV to the decode worker.

    The leg is over with each choice's first token. `decode_address` is that worker's KV plane, as it said at
    its hello.
    """

    ticket: Ticket
    decode_address: str


class DecodeLeg(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="decode"):
    """Go on from the tokens that each open choice already has, with the KV that the ticket's transfer brings.

    Without a ticket, or when the transfer fails and `on_failure` is "recompute", everything up to there is
    computed here. `prefill_address` is where the KV can be pulled from if it was not pushed.
    """

    outputs: dict[int, list[int]]
    ticket: Ticket | None = None
    prefill_address: str | None = None
    on_failure: Literal["recompute", "fail"] = "recompute"


Leg = PrefillLeg | DecodeLeg
KVSource = Literal["transferred", "recomputed"]
ServingPath = Literal["unified", "prefill-decode", "local-prefill", "recomputed"]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the model's own distribution, before penalties and temperature.

    `rank` is 1 for the most likely token. `top` holds the most likely (token id, logprob), best first, as
    many as were asked.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Seconds that the engine spent on a request before its first token.

    `transfer_s` is what a decode leg waited for KV after it had been submitted, or another request for the
    prefix that it fetched.
    """

    queue_s: float
    prefill_s: float
    transfer_s: float = 0.0


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An error on its way from the engine to the client: its class's name in `atomesh.errors`, and its
    words; of a refusal also when to come back."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step brought for one choice of one request.

    `prompt_logprobs` (one entry a prompt token, the first null), `cached_tokens` and `timings` come once,
    with the first delta of choice 0. `finish_reason` ends the choice; the token that stopped it is in
    `token_ids`. With reason "error", `error` says why and all choices of the request have ended.
    `serving_path` is the mesh's word, never a worker's: with a request's first delta, and when it changes.
    """

    request_id: str
    choice: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the entry of stop_token_ids that ended it; null for an EOS
    cached_tokens: int | None = None
    timings: Timings | None = None
    kv_source: KVSource | None = None  # with a decode leg's first delta of choice 0 … n − 1
    error: WireError | None = None
    serving_path: ServingPath | None = None
