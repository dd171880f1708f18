"""Who may use the API, how much of it, and over what: the flags of `serve` and `gateway` for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from atomesh.errors import ConfigurationError
from atomesh.mesh.admission.admission import QueueRules
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.mesh.gateway.tenants_file import TenantsFile
from atomesh.mesh.gateway.tls import TlsFiles, server_context

_RULES = QueueRules()
MAX_QUEUE = 1_000_000
MAX_QUEUE_WAIT_S = 86_400
LOOPBACK = ("127.", "::1", "localhost")


@Parameter(name="*", group=Group("Access", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class AccessFlags:
    api_keys_file: Path | None = None
    """TOML file of tenants: their keys or the keys' SHA-256, models, limits, weights; docs/tenants.md has all
    of it. It is read again when it changes. By default all keys are equal."""
    share_prefixes: Annotated[bool, Parameter(negative=())] = False
    """Let all keys share cached prefixes; by default each has its own, so that no speed tells what
    others have asked."""
    max_queue: int = _RULES.max_requests
    """Most requests that wait for a worker, of each model; beyond that the answer is 503 or 429."""
    max_queue_wait: float = _RULES.max_wait_s
    """Longest time in seconds that a request waits for a worker; one that would wait longer is refused at
    once."""
    tls_cert: Path | None = None
    """PEM file with the server's certificate, and those up to its root after it: serve HTTPS alone. By
    default the server speaks plain HTTP."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, unencrypted; by default there is none."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_queue <= MAX_QUEUE:
            raise ConfigurationError(
                f"--max-queue is {self.max_queue}; it must lie between 1 and {MAX_QUEUE}"
            )
        if not 0 < self.max_queue_wait <= MAX_QUEUE_WAIT_S:
            raise ConfigurationError(
                f"--max-queue-wait is {self.max_queue_wait:g} s; it must be more than 0 and at most "
                f"{MAX_QUEUE_WAIT_S} s, a day"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "--tls-key" if self.tls_key is None else "--tls-cert"
            raise ConfigurationError(f"{missing} is missing; TLS needs both --tls-cert and --tls-key")

    def to_options(self, api_keys: tuple[str, ...]) -> AccessOptions:
        return AccessOptions(
            TenantOptions(api_keys, self.api_keys_file, self.share_prefixes),
            QueueRules(max_requests=self.max_queue, max_wait_s=self.max_queue_wait),
        )

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key)

    def check(self) -> None:
        """Read the files. Raises ConfigurationError when they are not good."""
        if self.api_keys_file is not None:
            TenantsFile(self.api_keys_file).read()
        if self.tls is not None:
            server_context(self.tls)


ACCESS_DEFAULTS = AccessFlags()


def open_door_warning(host: str, access: AccessOptions) -> str | None:
    """One line for an operator who lets in everybody on the network; None where nobody needs it."""
    if access.tenants.need_key or not host or host.startswith(LOOPBACK):
        return None
    return (
        f"anybody who reaches {host} may use this server: no key is asked for; set --api-key or "
        "--api-keys-file, or listen on 127.0.0.1"
    )
