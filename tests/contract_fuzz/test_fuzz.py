"""Schemathesis over the server's own document: whatever is asked, an answer of a known kind, and no harm."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.generation import GenerationMode

from atomesh.testing.answer_judge import AnswerJudge
from atomesh.testing.calmed_request import calmed
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.process_memory import lasting_bytes
from atomesh.testing.served_process import ADMIN_TOKEN
from atomesh.testing.tiny_tokenizer import VOCABULARY_SIZE

CASES, SOAKED_CASES = 320, 20_000
SEED = 20_261_130
# They get more of the cases, and many of those are made so that they can be answered.
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
CALMED = (*GENERATING, "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens")
SHARE_OF_CALM = 0.6
HEADERS = (
    ("x-explain", ("1", "0", "yes")),
    ("x-request-id", ("mine", "not one of ours", "x" * 200)),
    ("x-request-timeout", ("60", "nan", "-1", "soon")),
    ("x-placement-policy", ("round_robin", "nobody's")),
    ("accept", ("text/event-stream", "image/png")),
)
PATIENCE_S = 20.0
MAX_GROWTH = 96 * 2**20
SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    derandomize=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

Document = Mapping[str, Any]


@dataclass
class Fuzz:
    """Asks, judges, and puts right what an accepted order has changed.

    `kept` are ids of stored responses; `findings` has, for each kind of fault, the first case that showed it.
    """

    bench: PDBench
    judge: AnswerJudge
    http: requests.Session
    rng: random.Random
    kept: list[str] = field(default_factory=list)
    findings: dict[str, str] = field(default_factory=dict)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def num_asked(self) -> int:
        return sum(self.statuses.values())

    def ask(self, case: schemathesis.Case) -> None:
        method, path = case.method.upper(), case.path
        self._prepare(case)
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"} if self.judge.is_operators(method, path) else {}
        headers |= {name: self.rng.choice(values) for name, values in HEADERS if self.rng.random() < 0.1}
        try:
            answer = case.call(
                base_url=self.bench.served.url, session=self.http, headers=headers, timeout=PATIENCE_S
            )
        except requests.RequestException as error:
            self._find(case, f"no answer: {type(error).__name__}", b"")
            return
        self.statuses[path, answer.status_code] += 1
        told = {name: values[0] for name, values in answer.headers.items()}
        body = answer.content.decode()
        for finding in self.judge.findings(method, path, answer.status_code, told, body):
            self._find(case, finding, answer.content)
        if answer.status_code == 200:
            self._undo(case)
            if path == "/v1/responses" and body.startswith("{"):
                self.kept.append(answer.json()["id"])

    def _find(self, case: schemathesis.Case, finding: str, body: bytes) -> None:
        words = f"{case.method} {case.path}: {finding}"
        self.findings.setdefault(words, f"{case.as_curl_command()[:3000]} → {body[:500]!r}")

    def _prepare(self, case: schemathesis.Case) -> None:
        if case.path == "/workers/{id}/role" and self.rng.random() < 0.5:
            case.path_parameters = {"id": "unified-0"}
        if case.path.startswith("/v1/responses/{id}") and self.kept and self.rng.random() < 0.8:
            case.path_parameters = {"id": self.rng.choice(self.kept)}
        if case.path in CALMED and isinstance(case.body, dict) and self.rng.random() < SHARE_OF_CALM:
            case.body = calmed(case.path, case.body, self.rng, VOCABULARY_SIZE)

    def _undo(self, case: schemathesis.Case) -> None:
        if case.path == "/workers/{id}/role":
            answer = self.bench.admin("POST", "/workers/unified-0/role", {"role": "unified"})
            assert answer.status == 200
        if case.path == "/workers" and case.method.upper() == "POST":
            assert isinstance(case.body, dict)
            assert self.bench.admin("DELETE", f"/workers/{case.body['address']}").status == 200


@pytest.fixture
def document(bench: PDBench) -> Document:
    return bench.served.request("GET", "/openapi.json").body


@pytest.fixture
def fuzz(bench: PDBench, document: Document) -> Iterator[Fuzz]:
    with requests.Session() as http:
        yield Fuzz(bench, AnswerJudge(document), http, random.Random(SEED))


def shares(document: Document, cases: int) -> list[tuple[str, str, GenerationMode, int]]:
    """Operation by operation, in either mode where it takes a body: how many of the cases are its."""
    asked = [
        (path, method.upper(), mode, 10 if path in GENERATING else 1 + 2 * ("requestBody" in told))
        for path, methods in document["paths"].items()
        for method, told in methods.items()
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or "requestBody" in told
    ]
    total = sum(weight for *_, weight in asked)
    return [(path, method, mode, -(-weight * cases // total)) for path, method, mode, weight in asked]


def run_cases(fuzz: Fuzz, operation: Any, mode: GenerationMode, count: int, seed: int) -> None:
    """At most so many: an operation that takes nothing has but one."""

    @hypothesis.seed(seed)
    @hypothesis.settings(SETTINGS, max_examples=count)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        fuzz.ask(case)

    run()


def run_all(fuzz: Fuzz, document: Document, wanted: int, seed: int) -> None:
    """So many cases over all operations; what is left goes to the first of the generating ones."""
    schema = schemathesis.openapi.from_dict(dict(document))
    begun = fuzz.num_asked
    for path, method, mode, count in shares(document, wanted):
        run_cases(fuzz, schema[path][method], mode, count, seed)
    while (missing := wanted - (fuzz.num_asked - begun)) > 0 and not fuzz.findings:
        seed += 1
        run_cases(fuzz, schema[GENERATING[0]]["POST"], GenerationMode.POSITIVE, missing, seed)


@pytest.mark.timeout(3600)
def test_no_case_breaks_the_server(fuzz: Fuzz, document: Document, soak: bool) -> None:
    run_all(fuzz, document, CASES, SEED)
    assert fuzz.findings == {}
    assert {path for path, _ in fuzz.statuses} == document["paths"].keys()
    assert all(fuzz.statuses[path, 200] for path in GENERATING if path in document["paths"])
    if soak:
        check_memory(fuzz, document)


def check_memory(fuzz: Fuzz, document: Document) -> None:
    """What thousands of cases more leave behind."""
    before = lasting_bytes(fuzz.bench)
    run_all(fuzz, document, SOAKED_CASES - CASES, SEED + 1000)
    assert fuzz.findings == {}
    after = lasting_bytes(fuzz.bench)
    grown = {name: after[name] - size for name, size in before.items()}
    assert all(size < MAX_GROWTH for size in grown.values()), grown
