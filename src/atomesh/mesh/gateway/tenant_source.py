"""Where this gateway's tenants come from: its flags, and a file that is read again when it changes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from atomesh.clock import Clock
from atomesh.mesh.gateway.tenants import KeyedTenant, TenantDirectory, sharing_prefixes, tenants_of_keys
from atomesh.mesh.gateway.tenants_file import TenantsFile

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class TenantOptions:
    """Without `api_keys` and `file`, nobody needs a key.

    With `share_prefixes`, what one tenant's prompts left in a cache serves all of them, and the time to a
    first token can tell one what another has asked.
    """

    api_keys: tuple[str, ...] = ()
    file: Path | None = None
    share_prefixes: bool = False

    @property
    def need_key(self) -> bool:
        return bool(self.api_keys) or self.file is not None


class TenantSource:
    """`directory` is as the flags and the file say; `run` keeps it so."""

    def __init__(self, options: TenantOptions, secret: bytes, clock: Clock) -> None:
        """Raises ConfigurationError."""
        self._share_prefixes = options.share_prefixes
        own = self._prepare(tenants_of_keys(options.api_keys, secret))
        self.directory = TenantDirectory(own, clock, needs_key=options.need_key)
        self._file = None if options.file is None else TenantsFile(options.file)
        if self._file is not None:
            self._adopt(self._file.read())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Take in the file's changes, if it has any. What runs and what waits goes on."""
        if self._file is not None:
            self._file.look(self._adopt)

    def _adopt(self, tenants: tuple[KeyedTenant, ...]) -> None:
        self.directory.adopt(self._prepare(tenants))

    def _prepare(self, tenants: tuple[KeyedTenant, ...]) -> tuple[KeyedTenant, ...]:
        return sharing_prefixes(tenants) if self._share_prefixes else tenants
