"""The text side of a model whose text is another server's business: it is listed, and refuses all else."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import NoReturn

from atomesh.errors import InvalidRequestError, ServiceUnavailableError
from atomesh.frontend.text.tokenizer import Tokenizer
from atomesh.mesh.backends.text_servers import TextServers
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription

RETRY_AFTER_S = 2


class RelayedTokenizer(Tokenizer):
    """Has no vocabulary."""

    def __init__(self) -> None:
        """Nothing is loaded."""

    @property
    def vocab_size(self) -> int:
        return 0

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        _refuse()

    def encode_masked(self, text: str, unmask: Mapping[int, str]) -> list[int]:
        _refuse()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        _refuse()


class RelayedService:
    """Implements `frontend.token_service.TokenService` as far as a list of models needs it."""

    def __init__(self, model: str, servers: TextServers) -> None:
        self._model = model
        self._servers = servers

    def describe(self) -> ModelDescription:
        model = self._servers.describe(self._model)
        if model is None:
            raise ServiceUnavailableError(
                f"no server of {self._model[:200]!r} answers now; try again in a few seconds",
                retry_after_s=RETRY_AFTER_S,
            )
        return ModelDescription(
            name=self._model,
            path="",
            architecture="",
            dtype="",
            vocab_size=0,
            max_model_len=model.max_model_len,
            eos_token_ids=(),
            block_size=1,
            num_blocks=0,
        )

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[TokenDelta], None]:
        _refuse()

    def load(self) -> LoadReport:
        return LoadReport(running=sum(server.in_flight for server in self._servers.of(self._model)))

    def loads(self) -> Mapping[str, LoadReport]:
        return {}


def aliases_of(model: str, aliases: Iterable[str], *, is_first: bool) -> tuple[str, ...]:
    """Those that name the model, as NAME=MODEL, and, of the first model, those that name none."""
    named = [alias.partition("=") for alias in aliases]
    return tuple(name for name, equals, of in named if of == model or (is_first and not equals))


def _refuse() -> NoReturn:
    raise InvalidRequestError(
        "this model's tokens are its own server's; ask for chats, completions or responses", param="model"
    )
