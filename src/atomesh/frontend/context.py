"""What every route shares: the models, the options, the metrics, the threads for long texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from starlette.types import Scope

from atomesh.clock import Clock
from atomesh.errors import ModelNotFoundError, ServiceUnavailableError
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.structured_output.grammar_checker import GrammarChecker
from atomesh.frontend.text.prompt_bounds import PromptBounds
from atomesh.frontend.text.text_pool import TextPool
from atomesh.observability.engine_collector import EngineReading
from atomesh.observability.metrics import FrontendMetrics
from atomesh.protocol.worker import ModelDescription

SEEN_MODELS = "atomesh.models"  # in an ASGI scope: as Frontend.models, for this request alone
COUNTED = "atomesh.counted"  # in an ASGI scope: a context in which the server waits for what it has to end
OWNER = "atomesh.owner"  # in an ASGI scope: whose the request is, and what is kept of it


@dataclass(frozen=True, slots=True)
class Frontend:
    """`hidden_models`: all there are, where `models` are those that one caller may see."""

    models: Callable[[], Sequence[ServedModel]]
    options: FrontendOptions
    metrics: FrontendMetrics
    texts: TextPool
    bounds: PromptBounds
    clock: Clock
    hidden_models: Callable[[], Sequence[ServedModel]] = field(default=tuple)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)

    def seen_from(self, scope: Scope) -> "Frontend":
        """With the models, and the services behind them, that a layer before the routes chose."""
        seen = scope.get(SEEN_MODELS)
        return self if seen is None else replace(self, models=seen, hidden_models=self.models)

    def find_model(self, name: str | None) -> ServedModel:
        """The model of that name, or the first where none is named.

        Raises ServiceUnavailableError while there is none at all, ModelNotFoundError for an unknown name, and
        for every name where this caller may use none of those there are.
        """
        models = self._models_if_any()
        if not models:
            what = f"the model {name[:200]!r} does not exist" if name else "no model is named"
            raise ModelNotFoundError(
                f"{what}, and this key may use none that this server has; ask the operator", param="model"
            )
        if not name:
            return models[0]
        for model in models:
            if name == model.name or name in model.aliases:
                return model
        raise ModelNotFoundError(
            f"the model {name[:200]!r} does not exist; this server has {', '.join(m.name for m in models)}",
            param="model",
        )

    def ready_models(self) -> list[tuple[ServedModel, ModelDescription]]:
        """The models that can be served now; where there is none at all, a ServiceUnavailableError instead.

        Empty for a caller who may use none of those there are.
        """
        models = self._models_if_any()
        ready = [(model, told) for model in models if (told := describe_if_ready(model)) is not None]
        return ready or [(model, model.service.describe()) for model in models]

    def _models_if_any(self) -> Sequence[ServedModel]:
        models = self.models()
        if not models and not self.hidden_models():
            raise ServiceUnavailableError("no model is ready yet; try again in a moment")
        return models

    def read_engines(self) -> list[EngineReading]:
        return [
            EngineReading(model.name, model.service.load(), describe_if_ready(model), model.service.loads())
            for model in self.models()
        ]


def describe_if_ready(model: ServedModel) -> ModelDescription | None:
    try:
        return model.service.describe()
    except ServiceUnavailableError:
        return None
