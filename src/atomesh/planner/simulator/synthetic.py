"""Traffic that is made up: other kinds of sharing than a recorded trace has, from a given rng.

Blocks are named as in a trace: an id stands for its tokens and for all before them.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random

from atomesh.planner.simulator.workload import Arrival

BLOCK_TOKENS = 512
NUM_TENANTS = 64
SYSTEM_BLOCKS = (2, 24)
QUESTION_TOKENS = (256, 6144)
OPENING_TOKENS = (512, 8192)
TURN_TOKENS = (256, 2048)
MEAN_TURNS = 6
THINK_S = 30.0


def make_tenants(num_requests: int, rng: Random) -> list[Arrival]:
    """A shared system prompt for each of NUM_TENANTS tenants, the k-th of which sends 1/k of the first's
    requests; each request adds a question of its own. One arrival a second on average."""
    ids = count()
    prompts = [[next(ids) for _ in range(rng.randint(*SYSTEM_BLOCKS))] for _ in range(NUM_TENANTS)]
    shares = list(accumulate(1.0 / rank for rank in range(1, NUM_TENANTS + 1)))
    now, arrivals = 0.0, list[Arrival]()
    for _ in range(num_requests):
        now += rng.expovariate(1.0)
        [prompt] = rng.choices(prompts, cum_weights=shares)
        num_tokens = len(prompt) * BLOCK_TOKENS + rng.randint(*QUESTION_TOKENS)
        own = [next(ids) for _ in range(-(-num_tokens // BLOCK_TOKENS) - len(prompt))]
        arrivals.append(Arrival(now, num_tokens, (*prompt, *own)))
    return arrivals


def make_chats(num_requests: int, rng: Random) -> list[Arrival]:
    """Chats that share nothing, MEAN_TURNS turns each on average; a turn repeats all that was said before,
    adds TURN_TOKENS, and comes THINK_S after the one before it on average. One new chat in MEAN_TURNS s."""
    ids = count()
    opens_at, arrivals = 0.0, list[Arrival]()
    turns: list[tuple[float, int, int, tuple[int, ...]]] = []  # when, tie-break, tokens, full blocks before
    while len(arrivals) < num_requests:
        if not turns or opens_at <= turns[0][0]:
            heappush(turns, (opens_at, next(ids), rng.randint(*OPENING_TOKENS), ()))
            opens_at += rng.expovariate(1.0 / MEAN_TURNS)
            continue
        now, _, num_tokens, known = heappop(turns)
        blocks = known + tuple(next(ids) for _ in range(-(-num_tokens // BLOCK_TOKENS) - len(known)))
        arrivals.append(Arrival(now, num_tokens, blocks))
        if rng.random() < 1.0 - 1.0 / MEAN_TURNS:
            later, longer = rng.expovariate(1.0 / THINK_S), rng.randint(*TURN_TOKENS)
            full = blocks[: num_tokens // BLOCK_TOKENS]
            heappush(turns, (now + later, next(ids), num_tokens + longer, full))
    return arrivals


SYNTHETIC: Mapping[str, Callable[[int, Random], list[Arrival]]] = {
    "tenants": make_tenants,
    "chats": make_chats,
}
