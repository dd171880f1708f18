"""What the operator and the workers may ask of a gateway, for the OpenAPI document."""

from dataclasses import replace
from typing import Any

from atomesh.frontend.contract.answers import Status
from atomesh.frontend.contract.operation import OPERATING, Operation, Operations
from atomesh.mesh.gateway.admin_requests import Fault, NewWorker, RoleChange
from atomesh.mesh.gateway.profile_routes import StartProfileBody, StopProfileBody
from atomesh.protocol.registration import Offer, Registration

_ANY = dict[str, Any]

_OPERATOR: Operations = {
    ("GET", "/workers"): Operation("The workers, their roles, states and loads", "operator", answer=_ANY),
    ("POST", "/workers"): Operation("Connect to a worker", "operator", NewWorker, _ANY),
    ("DELETE", "/workers/{id}"): Operation(
        "Let a worker go, with drain once it has nothing left to do",
        "operator",
        answer=_ANY,
        query={"drain": bool},
    ),
    ("POST", "/workers/{id}/role"): Operation(
        "Change what a worker does, live: by a preset or by weights", "operator", RoleChange, _ANY
    ),
    ("POST", "/reset_prefix_cache"): Operation("Empty all prefix caches", "operator", answer=Status),
    ("GET", "/debug/kv"): Operation("Every KV block by state and owner", "operator", answer=_ANY),
    ("POST", "/debug/fault"): Operation(
        "Break a worker on purpose; only there with --enable-faults", "operator", Fault, _ANY
    ),
    ("POST", "/start_profile"): Operation(
        "Record the workers' steps", "operator", StartProfileBody, _ANY, is_body_optional=True
    ),
    ("POST", "/stop_profile"): Operation(
        "The recorded steps as a Chrome trace", "operator", StopProfileBody, _ANY, is_body_optional=True
    ),
    ("GET", "/tenants"): Operation("Who uses what", "operator", answer=_ANY),
    ("GET", "/explain/{id}"): Operation("Why an answer went where it went", "operator", answer=_ANY),
    ("GET", "/rebalance"): Operation("What the rebalancer did, or would do", "operator", answer=_ANY),
}
GATEWAY_OPERATIONS: Operations = {
    **{key: replace(told, is_admin=True, refusals=OPERATING) for key, told in _OPERATOR.items()},
    ("GET", "/registration"): Operation("A nonce for the proof of a worker", "workers", answer=Offer),
    ("POST", "/registration"): Operation(
        "A worker makes itself known, or leaves", "workers", Registration, Status, refusals=OPERATING
    ),
}
