import pytest
from msgspec.structs import replace

from atomesh.frontend.served_model import ServedModel
from atomesh.mesh.gateway.unserved_names import GRACE_S, MAX_TOLD, UnservedNames, aliased_models
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_worker import MODEL
from atomesh.testing.scripted_service import ScriptedService


def model(name: str, *aliases: str) -> ServedModel:
    return ServedModel(name, ByteTokenizer(), None, ScriptedService(replace(MODEL, name=name)), 0, aliases)


class Watched:
    def __init__(self, named: dict[str, str], logs: pytest.LogCaptureFixture) -> None:
        self.named = named
        self.models: list[ServedModel] = []
        self.clock = ManualClock(100.0)
        self._logs = logs
        self._names = UnservedNames(lambda: self.named, lambda: self.models, self.clock)

    def said(self, after_s: float = 0.0) -> list[str]:
        self.clock.advance(after_s)
        self._logs.clear()
        self._names.look()
        return [record.getMessage() for record in self._logs.records]


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched({"nosuch": "the tenant support", "m": "the tenant research", "alias": "it too"}, caplog)


SUPPORTS = "no model is called 'nosuch', which the tenant support names; there are alias, m"


def test_a_name_that_no_model_has_is_said_once_when_the_models_are_there(watched: Watched) -> None:
    assert watched.said(3600.0) == []
    watched.models = [model("m", "alias")]
    assert watched.said() == []
    assert watched.said(GRACE_S - 0.1) == []
    assert watched.said(0.1) == [SUPPORTS]
    assert watched.said(3600.0) == []


def test_each_new_model_gives_the_next_one_time_to_come(watched: Watched) -> None:
    watched.models = [model("m", "alias")]
    watched.said()
    watched.models = [*watched.models, model("n")]
    assert watched.said(GRACE_S) == []
    watched.models = [*watched.models, model("nosuch")]
    assert watched.said(GRACE_S) == []
    assert watched.said(GRACE_S) == []


def test_what_a_changed_file_names_is_news(watched: Watched) -> None:
    watched.models = [model("m", "alias")]
    watched.said()
    assert watched.said(GRACE_S) == [SUPPORTS]
    watched.named = {**watched.named, "other": "the tenant new"}
    assert watched.said() == ["no model is called 'other', which the tenant new names; there are alias, m"]


def test_of_many_names_few_are_told(watched: Watched) -> None:
    watched.models = [model("m")]
    watched.named = {f"x{number}": "the tenant t" for number in range(MAX_TOLD + 7)}
    watched.said()
    told = watched.said(GRACE_S)
    assert len(told) == MAX_TOLD + 1
    assert told[-1] == "nor are there models for 7 more such names"


def test_an_alias_names_a_model_where_it_has_an_equals_sign() -> None:
    assert aliased_models(("short", "gpt-x=nosuch", "a=b=c")) == {
        "nosuch": "--model-alias gpt-x=nosuch",
        "b=c": "--model-alias a=b=c",
    }
