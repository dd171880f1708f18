"""Placement over the cluster as it is now: the shell that reads registry, index, costs and clock for it."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec.structs import replace as replaced

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.cluster.cluster import Cluster
from atomesh.mesh.cluster.snapshot import ClusterSnapshot, WorkerSnapshot
from atomesh.mesh.dispatch.explanations import Account
from atomesh.mesh.dispatch.output_length import OutputLength
from atomesh.mesh.dispatch.prompt_hashes import NO_KEY, Chains, PromptHashes, chain_of
from atomesh.mesh.dispatch.shared import Shared
from atomesh.mesh.kv_index.matches import NO_MATCHES
from atomesh.mesh.placement.earliest import earliest_first_token_s
from atomesh.mesh.placement.explanation import Decision
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts, Way
from atomesh.mesh.placement.place import place_among, place_rest_among
from atomesh.mesh.placement.placement import (
    RETRY_AFTER_S,
    Candidates,
    PlacementRules,
    PrefillDecode,
    candidates,
    check_options,
    choose,
)
from atomesh.mesh.placement.policies.rules import PolicyRules
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import ModelDescription

START_S = 60.0
PATIENCE_S = 5.0  # a silent worker is lost before that, or heard again
HASHED_IN_A_THREAD = 16_384  # tokens from which on their hashing would hold up the event loop


@dataclass(frozen=True, slots=True)
class Later:
    """It would take a worker that is silent: ask again when the cluster has changed, or give up with this."""

    error: AtomeshError


@dataclass(frozen=True, slots=True)
class MeshRules:
    """`policies` say who is preferred, `placement` what must not be.

    With `hashes_all` a prompt's hashes are known whatever the policy: what lies at a worker is used anyway.
    """

    placement: PlacementRules
    policies: PolicyRules
    hashes_all: bool = True


class Placer:
    """For one model."""

    def __init__(self, model: str, registry: Cluster, clock: Clock, rules: MeshRules, shared: Shared) -> None:
        self.outputs = OutputLength()
        self._is_closed = False
        self._model = model
        self._registry = registry
        self._clock = clock
        self._rules = rules.placement
        self._policies = rules.policies.for_model(model)
        self._hashes_all = rules.hashes_all
        self._shared = shared
        self._hashes = PromptHashes(shared.secret)
        self._dice = random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._last_way: Way | None = None
        self._opened_at = clock.now()

    def close(self) -> None:
        """Nothing is placed any more, neither what has been waiting for it."""
        self._is_closed = True
        self._registry.tell_change()

    def describe(self) -> ModelDescription:
        """The model as the least of its workers serves it, be it a silent one.

        Raises ServiceUnavailableError if none can.
        """
        cluster = self._registry.snapshot()
        workers = self._candidates(cluster).ready
        check_options(workers, self._rules_now(cluster))
        told = [worker.description.model for worker in workers if worker.description is not None]
        return replaced(told[0], max_model_len=min(model.max_model_len for model in told))

    async def find(self, wanted: Place | PlaceRest) -> Placed | Nowhere:
        """Waits for silent workers if it must, PATIENCE_S at most; to leave meanwhile costs nothing."""
        try:
            self._let_in(wanted)
        except AtomeshError as error:
            return Nowhere(error)
        chains: Chains | None = None
        if not self._is_hashed(request_of(wanted)):
            chains = {}
        elif len(request_of(wanted).prompt_token_ids) >= HASHED_IN_A_THREAD:
            workers = self._registry.snapshot().ready(self._model)
            chains = await asyncio.to_thread(self._hashes.chains, request_of(wanted), workers)
        answer = self.ask(wanted, chains)
        if not isinstance(answer, Later):
            return answer
        changed = asyncio.Event()
        with self._registry.heeding(changed.set), suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while isinstance(answer := self.ask(wanted, chains), Later):
                    await changed.wait()
                    changed.clear()
        return Nowhere(answer.error) if isinstance(answer, Later) else answer

    def _is_hashed(self, request: GenerationRequest) -> bool:
        return self._hashes_all or self._policies.reads_prompt(request.policy)

    def bar(self, request: GenerationRequest) -> None:
        """Its prompt is not tried again for a while."""
        self._shared.quarantine.bar(request, self._clock.now())

    def _let_in(self, wanted: Place | PlaceRest) -> None:
        """Raises FatalRequestError for a barred prompt, ServiceUnavailableError for one retry too many."""
        now, retries = self._clock.now(), self._shared.retries
        if isinstance(wanted, PlaceRest):
            return
        if wanted.is_charged and not retries.try_spend(now):
            raise ServiceUnavailableError(
                "too many requests are being tried again; try again in a few seconds",
                retry_after_s=RETRY_AFTER_S,
            )
        if not wanted.excluded:
            self._shared.quarantine.check(wanted.request, now)
            retries.note_request(now)

    def ask(self, wanted: Place | PlaceRest, chains: Chains | None = None) -> Placed | Nowhere | Later:
        """`chains` are the prompt's, where they are known already."""
        try:
            cluster = self._registry.snapshot()
            found = self._candidates(cluster, wanted.excluded)
            if chains is None:
                chains = self._hashes.chains(request_of(wanted), found.ready)
            inputs = self._inputs(wanted, cluster, chains)
            decision = choose(found, lambda workers: self._decide(wanted, workers, inputs))
        except AtomeshError as error:
            return Nowhere(error)
        if decision is None:
            return Later(_silence())
        self._remember(wanted, decision, chains)
        return Placed(decision.placement)

    def earliest_first_token_s(self, request: GenerationRequest) -> float | None:
        """From now, at the worker that would be the quickest; None where nobody can say, or not quickly."""
        if len(request.prompt_token_ids) >= HASHED_IN_A_THREAD:
            return None
        try:
            cluster = self._registry.snapshot()
            workers = self._candidates(cluster).fresh
        except AtomeshError:
            return None
        wanted = Place(request, frozenset())
        return earliest_first_token_s(
            workers, self._inputs(wanted, cluster, self._hashes.chains(request, workers))
        )

    def saw(self, account: Account, deltas: Sequence[TokenDelta]) -> None:
        """One step of the answer, on its way to the client."""
        account.saw(deltas, self._clock.now())

    def ended(self, account: Account) -> None:
        """Whether or not the answer is complete."""
        if account.measured.output_tokens:
            self.outputs.ended(account.measured.output_tokens / account.choices)

    def _inputs(self, wanted: Place | PlaceRest, cluster: ClusterSnapshot, chains: Chains) -> PlacementInputs:
        now, knowledge = self._clock.now(), self._shared.knowledge
        matches = NO_MATCHES
        for chain in chains.values():
            found = knowledge.index.match(chain, now)
            matches = {**matches, **found} if matches else found
        return PlacementInputs(
            request=self._facts(wanted, chains),
            model=self._model,
            cluster=cluster,
            now=now,
            dice=self._dice,
            excluded=wanted.excluded,
            matches=matches,
            costs=knowledge.costs.view(),
            rules=self._rules_now(cluster),
            last_way=self._last_way,
        )

    def _facts(self, wanted: Place | PlaceRest, chains: Chains) -> RequestFacts:
        request = request_of(wanted)
        key, chain = next(iter(chains.items()), (NO_KEY, ()))
        num_tokens, choices = len(request.prompt_token_ids), request.n
        if isinstance(wanted, PlaceRest):
            num_tokens, choices = wanted.rest.num_tokens, wanted.rest.choices
        return RequestFacts(
            num_prompt_tokens=num_tokens,
            choices=choices,
            output_tokens=self.outputs.expected(request.sampling.max_tokens),
            block_hashes=chain,
            block_size=key.block_size,
            policy=request.policy,
            session=request.session,
            salt=request.cache_salt,
        )

    def _decide(
        self, wanted: Place | PlaceRest, workers: Sequence[WorkerSnapshot], inputs: PlacementInputs
    ) -> Decision:
        match wanted:
            case Place():
                return place_among(workers, inputs, self._policies)
            case PlaceRest(rest):
                return place_rest_among(rest, workers, inputs, self._policies)

    def _remember(self, wanted: Place | PlaceRest, decision: Decision, chains: Chains) -> None:
        """What was decided is as good as done: the next decision counts on it."""
        now, placement = self._clock.now(), decision.placement
        if isinstance(placement, PrefillDecode):
            self._last_way, workers = "apart", [placement.prefill, placement.decode]
        else:
            self._last_way, workers = "whole", [placement.worker]
        for worker in workers:
            self._shared.knowledge.index.predict(worker.incarnation, chain_of(worker, chains), now)
        account = self._shared.explanations.get(request_of(wanted).request_id)
        if account is not None:
            account.decided(decision.explanation, now, is_rest=isinstance(wanted, PlaceRest))

    def _rules_now(self, cluster: ClusterSnapshot) -> PlacementRules:
        """At the start, workers that have not said hello yet are waited for, but not for ever."""
        is_starting = self._clock.now() - self._opened_at < START_S and cluster.is_growing
        return replace(self._rules, may_fall_back=False) if is_starting else self._rules

    def _candidates(self, cluster: ClusterSnapshot, excluded: frozenset[str] = frozenset()) -> Candidates:
        if self._is_closed:
            raise ServiceUnavailableError("the server is shutting down; try again later")
        return candidates(self._model, cluster, self._clock.now(), excluded)


def request_of(wanted: Place | PlaceRest) -> GenerationRequest:
    return wanted.rest.request if isinstance(wanted, PlaceRest) else wanted.request


def _silence() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the workers that could serve this have been silent for a while; try again in a few seconds",
        retry_after_s=RETRY_AFTER_S,
    )
