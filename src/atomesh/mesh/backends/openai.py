"""Any server of the OpenAI API: its text goes through as it is, and no token of it is ours to place."""

from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.backends.backend import QuietBackend
from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_models import relay_texts
from atomesh.protocol.generation import GenerationRequest, Leg
from atomesh.protocol.worker import RoleWeights


class OpenAIBackend(QuietBackend):
    """Implements WorkerBackend, but is no worker: the registry does not know it."""

    def __init__(self, spec: BackendSpec, context: BackendContext) -> None:
        self.address = spec.url
        self._spec = spec
        self._context = context
        self._client = HttpClient(spec.url, spec.api_key)

    async def run(self) -> None:
        try:
            await relay_texts(self._spec, self._context, self._client)
        finally:
            await self._client.close()

    def submit(self, request: GenerationRequest, _leg: Leg | None) -> RequestStream:
        stream = RequestStream(request.n, lambda _: None)
        stream.fail(ServiceUnavailableError("this model's server takes text, no tokens"))
        return stream

    def set_role(self, weights: RoleWeights) -> None:
        """It has none."""

    def fail_all(self, error: AtomeshError) -> None:
        """Its answers end with the HTTP server."""
