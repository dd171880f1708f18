from pathlib import Path

import pytest
from cyclopts import App

from atomesh.cli.access_flags import ACCESS_DEFAULTS, AccessFlags, open_door_warning
from atomesh.cli.flags import to_argv
from atomesh.errors import ConfigurationError
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.mesh.gateway.tls import TlsFiles

EVERYWHERE = "0.0.0.0"  # noqa: S104


def parse(*words: str) -> AccessFlags:
    app = App(result_action="return_value")

    @app.default
    def command(*, access: AccessFlags = ACCESS_DEFAULTS) -> AccessFlags:
        return access

    parsed: AccessFlags = app(words)
    return parsed


def test_what_is_handed_on_is_what_was_given() -> None:
    flags = AccessFlags(
        api_keys_file=Path("t.toml"),
        share_prefixes=True,
        max_queue=7,
        max_queue_wait=1.5,
        tls_cert=Path("a b.crt"),
        tls_key=Path("k"),
    )
    assert parse(*to_argv(flags)) == flags
    assert to_argv(AccessFlags()) == []


def test_flags_become_options() -> None:
    flags = AccessFlags(api_keys_file=Path("t"), share_prefixes=True, max_queue=7, max_queue_wait=1.5)
    options = flags.to_options(("k",))
    assert options.tenants == TenantOptions(("k",), Path("t"), share_prefixes=True)
    assert (options.queue.max_requests, options.queue.max_wait_s) == (7, 1.5)
    assert AccessFlags().to_options(()) == AccessOptions()
    assert AccessFlags().tls is None
    assert AccessFlags(tls_cert=Path("c"), tls_key=Path("k")).tls == TlsFiles(Path("c"), Path("k"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_queue": 0}, "--max-queue is 0"),
        ({"max_queue_wait": 0.0}, "--max-queue-wait is 0 s"),
        ({"max_queue_wait": float("nan")}, "--max-queue-wait is nan"),
        ({"tls_cert": Path("c")}, "--tls-key is missing"),
        ({"tls_key": Path("k")}, "--tls-cert is missing"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        AccessFlags(**fields)  # type: ignore[arg-type]


def test_files_are_checked_before_anything_starts(tmp_path: Path) -> None:
    AccessFlags().check()
    with pytest.raises(ConfigurationError, match="cannot read the tenants"):
        AccessFlags(api_keys_file=tmp_path / "none").check()
    with pytest.raises(ConfigurationError, match="cannot read --tls-cert"):
        AccessFlags(tls_cert=tmp_path / "none", tls_key=tmp_path / "none").check()


@pytest.mark.parametrize(
    ("host", "tenants", "warns"),
    [
        ("127.0.0.1", TenantOptions(), False),
        ("127.1.2.3", TenantOptions(), False),
        ("localhost", TenantOptions(), False),
        ("::1", TenantOptions(), False),
        (EVERYWHERE, TenantOptions(), True),
        ("::", TenantOptions(), True),
        ("10.0.0.1", TenantOptions(), True),
        (EVERYWHERE, TenantOptions(("k",)), False),
        (EVERYWHERE, TenantOptions(file=Path("t")), False),
    ],
)
def test_an_open_door_to_the_network_is_warned_of(host: str, tenants: TenantOptions, warns: bool) -> None:
    line = open_door_warning(host, AccessOptions(tenants))
    assert (line is not None) is warns
    assert line is None or (host in line and "\n" not in line)
