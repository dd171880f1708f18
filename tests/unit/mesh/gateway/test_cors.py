from collections.abc import Iterator

import pytest
from starlette.middleware import Middleware

from atomesh.frontend.app import create_app
from atomesh.mesh.gateway.cors import Cors
from atomesh.mesh.gateway.tenant_guard import TenantGuard
from atomesh.mesh.gateway.tenants import TenantDirectory, tenants_of_keys
from atomesh.testing.app_server import serve_app
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.raw_http import send

PAGE = "https://a.example"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    clock = ManualClock()
    tenants = TenantDirectory(tenants_of_keys(["key-one"], b"secret"), clock, needs_key=True)
    layers = [Middleware(Cors, (PAGE,)), Middleware(TenantGuard, tenants, list, clock, ("/live",))]
    with serve_app(create_app(list, middleware=layers)) as server:
        yield server.url


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"authorization": "Bearer key-one"}, 503)])
def test_an_allowed_page_can_read_refusals(url: str, headers: dict[str, str], status: int) -> None:
    response = send(url, "GET", "/v1/models", headers={"origin": PAGE, **headers})
    assert (response.status, response.headers["access-control-allow-origin"]) == (status, PAGE)
    assert response.error["message"]
    assert response.headers["x-request-id"]


def test_another_page_is_told_no_origin(url: str) -> None:
    response = send(url, "GET", "/v1/models", headers={"origin": "https://b.example"})
    assert response.status == 401
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("origin", "status"), [(PAGE, 200), ("https://b.example", 400)])
def test_a_preflight_needs_no_key(url: str, origin: str, status: int) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST"}
    response = send(url, "OPTIONS", "/v1/chat/completions", headers=asked)
    assert response.status == status
    assert response.is_complete
    assert response.headers.get("access-control-allow-origin") == (PAGE if status == 200 else None)
    if status == 400:
        assert response.error["message"] == "Disallowed CORS origin"
        assert response.headers["content-type"] == "application/json"
