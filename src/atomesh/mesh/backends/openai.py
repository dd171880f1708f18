"""Any server of the OpenAI API: its text goes through as it is, and no token of it is ours to place."""

from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.backends.backend import QuietBackend
from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.http_client import HttpClient
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_worker import TextWorker
from atomesh.protocol.generation import GenerationRequest, Leg
from atomesh.protocol.worker import RoleWeights


class OpenAIBackend(QuietBackend):
    """Implements WorkerBackend but for legs: what it is asked goes past here, as text."""

    def __init__(self, spec: BackendSpec, context: BackendContext) -> None:
        self.address = spec.url
        self._spec = spec
        self._context = context
        context.registry.expect(spec.url)

    async def run(self) -> None:
        client = HttpClient(self._spec.url, self._spec.api_key)
        try:
            await TextWorker(self._spec, self._context, client).run()
        finally:
            await client.close()

    def submit(self, request: GenerationRequest, _leg: Leg | None) -> RequestStream:
        stream = RequestStream(request.n, lambda _: None)
        stream.fail(ServiceUnavailableError("this model's server takes text, no tokens"))
        return stream

    def set_role(self, weights: RoleWeights) -> None:
        """All of them are the same to it but parked."""
        self._context.registry.set_weights(self.address, weights)

    def fail_all(self, error: AtomeshError) -> None:
        """Its answers are ended where they go past: TextServers.end_all."""
