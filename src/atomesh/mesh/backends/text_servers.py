"""The servers that take text and give text, by the models they serve."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from atomesh.mesh.backends.http_client import HttpClient


@dataclass(frozen=True, slots=True)
class TextModel:
    """`id` is what its server calls it; `max_model_len` is 0 where the server does not say."""

    name: str
    id: str
    max_model_len: int = 0


@dataclass(slots=True, eq=False)
class TextServer:
    """One server; `models` is empty while it does not answer."""

    url: str
    client: HttpClient
    models: dict[str, TextModel] = field(default_factory=dict)
    in_flight: int = 0
    dispatched: int = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While it answers one more request."""
        self.in_flight += 1
        self.dispatched += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class TextServers:
    """`on_model` hears each model's name when it is first served."""

    def __init__(self, on_model: Callable[[str], None] = lambda _: None) -> None:
        self._servers: dict[str, TextServer] = {}
        self._on_model = on_model

    def join(self, server: TextServer) -> None:
        self._servers[server.url] = server

    def leave(self, server: TextServer) -> None:
        self._servers.pop(server.url, None)

    def serves(self, server: TextServer, models: Iterable[TextModel]) -> None:
        """From now on, these and no others."""
        server.models = {model.name: model for model in models}
        for name in server.models:
            self._on_model(name)

    def of(self, model: str) -> Sequence[TextServer]:
        """Those that serve it now, the least busy first; of equals the one that was sent the least."""
        found = (server for server in self._servers.values() if model in server.models)
        return sorted(found, key=lambda server: (server.in_flight, server.dispatched))

    def describe(self, model: str) -> TextModel | None:
        """As the least of its servers serves it; None while there is none."""
        models = [server.models[model] for server in self.of(model)]
        return min(models, key=lambda one: one.max_model_len) if models else None
