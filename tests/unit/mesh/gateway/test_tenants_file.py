import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from atomesh.errors import AuthenticationError, ConfigurationError
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.gateway.tenant_source import TenantOptions, TenantSource
from atomesh.mesh.gateway.tenants import digest_of
from atomesh.mesh.gateway.tenants_file import parse_tenants
from atomesh.testing.manual_clock import ManualClock

KEY, OTHER_KEY = "sk-research-0001", "sk-support-0001"
SHA256 = hashlib.sha256(OTHER_KEY.encode()).hexdigest()
FULL = f"""
[[tenant]]
name = "research"
key = "{KEY}"
models = ["small", "large"]
requests_per_minute = 600
tokens_per_minute = 100000
weight = 2
priority = "high"
may_explain = true
may_choose_policy = true
may_set_priority = true

[[tenant]]
name = "support"
key_sha256 = ["{SHA256.upper()}"]
"""


def parse(text: str) -> Any:
    return parse_tenants(text, "tenants.toml")


def test_every_field_is_read() -> None:
    research, support = parse(FULL)
    assert research.tenant == Tenant(
        name="research",
        models=frozenset({"small", "large"}),
        requests_per_minute=600,
        tokens_per_minute=100_000,
        weight=2.0,
        priority_class="high",
    )
    assert research.key_digests == (digest_of(KEY.encode()),)
    assert support.tenant == Tenant(
        name="support", may_explain=False, may_choose_policy=False, may_set_priority=False
    )
    assert support.key_digests == (digest_of(OTHER_KEY.encode()),)


def test_a_line_each_will_do() -> None:
    tenants = parse(
        'tenant = [\n  {name = "a", key = "aaaa-aaaa"},\n  {name = "b", key = ["bbbb-bbbb", "bbbb-cccc"]},\n]'
    )
    assert [(one.tenant.name, len(one.key_digests)) for one in tenants] == [("a", 1), ("b", 2)]


def test_an_empty_file_has_no_tenants() -> None:
    assert parse("") == ()


def table(**fields: str) -> str:
    named = {"name": '"a"', "key": f'"{KEY}"', **fields}
    return "[[tenant]]\n" + "".join(f"{name} = {value}\n" for name, value in named.items() if value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (table(name='"a b"'), r"tenant\[0\].name"),
        (table(name=""), "name"),
        (table(key=""), "tenant a has no key"),
        (table(key='"short"'), r"tenant a: key\[0\] has 5 characters; it must be 8 to 512"),
        (table(key='"with a space"'), r"key\[0\] has 12 characters"),
        (table(key_sha256='"abc"'), r"key_sha256\[0\] has 3 characters; it must be 64 hex digits"),
        (table(weight="0"), "weight"),
        (table(weight="1001"), "weight"),
        (table(weight="nan"), "weight"),
        (table(requests_per_minute="0"), "requests_per_minute"),
        (table(tokens_per_minute="1.5"), "tokens_per_minute"),
        (table(priority='"urgent"'), "priority"),
        (table(wieght="2"), "wieght"),
        (table() + table(), "two tenants a"),
        (table() + table(name='"b"'), "tenants a and b have the same key"),
        (table(key=f'"{KEY}'), "not TOML: it cannot be read at line 3"),
        ("tenant = 3", "tenant"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_never_with_the_key(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        parse(text)
    assert KEY not in refused.value.message
    assert "tenants.toml" in refused.value.message


class Watched:
    def __init__(self, path: Path, text: str, **options: Any) -> None:
        self.path = path / "tenants.toml"
        self._age = 0
        self.write(text)
        self.clock = ManualClock()
        self.source = TenantSource(TenantOptions(file=self.path, **options), b"secret", self.clock)

    def write(self, text: str) -> None:
        self._age += 1
        self.path.write_text(text)
        os.utime(self.path, ns=(self._age * 10**9, self._age * 10**9))

    def rewrite(self, text: str) -> None:
        self.write(text)
        self.source.look()

    def name_of(self, key: str) -> str:
        return self.source.directory.seat_of(key.encode()).tenant.name

    def is_known(self, key: str) -> bool:
        try:
            self.name_of(key)
        except AuthenticationError:
            return False
        return True


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path, FULL)
    assert (watched.name_of(KEY), watched.name_of(OTHER_KEY)) == ("research", "support")
    assert watched.source.directory.are_several
    watched.rewrite(table(name='"renamed"', key=f'"{OTHER_KEY}"'))
    assert not watched.is_known(KEY)
    assert watched.name_of(OTHER_KEY) == "renamed"
    assert not watched.source.directory.are_several


def test_what_was_used_of_a_limit_stays_used(tmp_path: Path) -> None:
    watched = Watched(tmp_path, table(requests_per_minute="2"))
    seat = watched.source.directory.seat_of(KEY.encode())
    seat.limits.take_request(0.0)
    watched.rewrite(table(requests_per_minute="3", weight="5"))
    again = watched.source.directory.seat_of(KEY.encode())
    assert again.tenant.weight == 5.0
    assert again.limits.allowances(0.0)["requests"].remaining == 2


def test_a_file_that_is_wrong_changes_nothing_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, FULL)
    watched.rewrite(f'[[tenant]]\nname = "a"\nkey = "{KEY}')
    watched.source.look()
    assert watched.name_of(KEY) == "research"
    watched.path.unlink()
    watched.source.look()
    watched.source.look()
    assert watched.name_of(KEY) == "research"
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert "end of document" in errors[0]
    assert "cannot read" in errors[1]
    assert KEY not in caplog.text
    watched.rewrite(table(name='"back"'))
    assert watched.name_of(KEY) == "back"


def test_without_a_tenant_left_nobody_comes_in(tmp_path: Path) -> None:
    watched = Watched(tmp_path, FULL)
    watched.rewrite("")
    assert not watched.is_known(KEY)
    with pytest.raises(AuthenticationError):
        watched.source.directory.seat_of(None)


def test_flags_add_tenants_and_a_key_in_the_file_is_the_files(tmp_path: Path) -> None:
    watched = Watched(tmp_path, FULL, api_keys=(KEY, "sk-flag-00001"))
    assert watched.name_of(KEY) == "research"
    assert watched.name_of("sk-flag-00001").startswith("key-")
    assert len(list(watched.source.directory)) == 3
    watched.rewrite("")
    assert watched.name_of(KEY).startswith("key-")


@pytest.mark.parametrize("shares", [False, True])
def test_prefixes_are_a_tenants_own_unless_they_are_shared(tmp_path: Path, shares: bool) -> None:
    watched = Watched(tmp_path, FULL, api_keys=("sk-flag-00001",), share_prefixes=shares)
    salts = {seat.tenant.salt("") for seat in watched.source.directory}
    assert salts == {""} if shares else len(salts) == 3
    watched.rewrite(FULL + table(name='"third"', key='"sk-third-0001"'))
    assert (watched.source.directory.seat_of(b"sk-third-0001").tenant.salt("") == "") is shares


def test_a_missing_file_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the tenants in .*nowhere\.toml"):
        TenantSource(TenantOptions(file=tmp_path / "nowhere.toml"), b"secret", ManualClock())


def test_no_key_is_kept(tmp_path: Path) -> None:
    watched = Watched(tmp_path, FULL, api_keys=("sk-flag-00001",))
    directory = watched.source.directory
    kept = repr([vars(directory), list(directory), vars(watched.source)])
    assert KEY not in kept
    assert "sk-flag-00001" not in kept
    assert digest_of(KEY.encode()) not in directory._seat_by_digest


def test_the_example_of_the_page_is_what_is_read() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tenants.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    for number, short in enumerate(("5f1c…", "9a0b…", "77fe…")):
        example = example.replace(short, f"{number}" * 64)
    research, support = parse(example)
    assert (research.tenant.weight, research.tenant.priority_class) == (2.0, "high")
    assert (support.tenant.name, len(support.key_digests)) == ("support", 2)
