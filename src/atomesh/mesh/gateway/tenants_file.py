"""The file of tenants: one TOML table each, with its keys or their digests, its limits and its share."""

import logging
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from atomesh.errors import ConfigurationError
from atomesh.mesh.admission.tenant import PriorityClass, Tenant
from atomesh.mesh.gateway.tenants import KeyedTenant, digest_of

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 * 2**20
MAX_TENANTS = 10_000
MAX_WEIGHT = 1000.0
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_KEY = re.compile(r"[\x21-\x7e]{8,512}")

Limit = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class TenantTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[tenant]]`: `key` in plain or `key_sha256` in hex, each one or several; both count."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: str | list[str] = []
    key_sha256: str | list[str] = []
    models: list[str] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    weight: Annotated[float, msgspec.Meta(gt=0.0, le=MAX_WEIGHT)] = 1.0
    priority: PriorityClass = "normal"
    may_explain: bool = False
    may_choose_policy: bool = False
    may_set_priority: bool = False


class TenantTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: list[TenantTable] = []


class TenantsFile:
    """`read` it at the start; `look` at it now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def read(self) -> tuple[KeyedTenant, ...]:
        """Raises ConfigurationError with the place of what is wrong, and never with a key."""
        self._seen = self._stamp()
        return parse_tenants(self._text(), str(self._path))

    def look(self, adopt: Callable[[tuple[KeyedTenant, ...]], None]) -> None:
        """If the file has changed, `adopt` what it says now; what is wrong with it is logged, once, and what
        it said before goes on to hold."""
        if self._stamp() == self._seen:
            return
        try:
            adopt(self.read())
        except ConfigurationError as error:
            _log.error("%s; the tenants stay as they were", error.message)
        else:
            _log.info("the tenants in %s have been read again", self._path)

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            text = data.decode()
        except OSError as error:
            raise ConfigurationError(f"cannot read the tenants in {self._path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"the tenants in {self._path} are not UTF-8: byte {error.start} is invalid"
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise ConfigurationError(f"{self._path} is longer than {MAX_FILE_BYTES} bytes; shorten it")
        return text


def parse_tenants(text: str, source: str) -> tuple[KeyedTenant, ...]:
    """`source` is what messages call the file. Raises ConfigurationError."""
    try:
        tables = msgspec.convert(tomllib.loads(text), TenantTables).tenant
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {_place(error)}") from None
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
    if len(tables) > MAX_TENANTS:
        raise ConfigurationError(f"{source} has {len(tables)} tenants; the limit is {MAX_TENANTS}")
    tenants = tuple(_tenant(table, source) for table in tables)
    _check_unique(tenants, source)
    return tenants


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Where, and not what: the line may hold a key."""
    found = re.search(r"\(at [^()]*\)$", str(error))
    return "it cannot be read " + (found[0].strip("()") if found else "to its end")


def _tenant(table: TenantTable, source: str) -> KeyedTenant:
    digests = [digest_of(key.encode()) for key in _checked(table, "key", _KEY, source)]
    digests += [bytes.fromhex(text) for text in _checked(table, "key_sha256", _DIGEST, source)]
    if not digests:
        raise ConfigurationError(f"{source}: tenant {table.name} has no key; give key or key_sha256")
    same: dict[str, Any] = {
        name: getattr(table, name)
        for name in (
            "name",
            "requests_per_minute",
            "tokens_per_minute",
            "weight",
            "may_explain",
            "may_choose_policy",
            "may_set_priority",
        )
    }
    models = None if table.models is None else frozenset(table.models)
    return KeyedTenant(Tenant(models=models, priority_class=table.priority, **same), tuple(digests))


def _checked(table: TenantTable, field: str, form: re.Pattern[str], source: str) -> list[str]:
    given = getattr(table, field)
    texts = [given] if isinstance(given, str) else list(given)
    for place, text in enumerate(texts):
        if form.fullmatch(text) is None:
            form_words = "64 hex digits" if field == "key_sha256" else "8 to 512 printable ASCII characters"
            raise ConfigurationError(
                f"{source}: tenant {table.name}: {field}[{place}] has {len(text)} characters; it must be "
                f"{form_words}, without spaces"
            )
    return texts


def _check_unique(tenants: tuple[KeyedTenant, ...], source: str) -> None:
    names: set[str] = set()
    holders: dict[bytes, str] = {}
    for keyed in tenants:
        name = keyed.tenant.name
        if name in names:
            raise ConfigurationError(f"{source}: there are two tenants {name}; give each its own name")
        names.add(name)
        for digest in keyed.key_digests:
            if digest in holders:
                raise ConfigurationError(
                    f"{source}: tenants {holders[digest]} and {name} have the same key; give each its own"
                )
            holders[digest] = name
