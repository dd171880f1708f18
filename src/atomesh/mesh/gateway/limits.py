"""What is left of a caller's limits, as response headers, in OpenAI's names and forms."""

from collections.abc import Mapping

from atomesh.mesh.admission.rate_limits import Allowance, Unit


def limit_headers(allowances: Mapping[Unit, Allowance]) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, for the limits that there are."""
    headers = []
    for unit, allowance in allowances.items():
        values = {
            "limit": str(allowance.limit),
            "remaining": str(allowance.remaining),
            "reset": format_duration(allowance.reset_s),
        }
        headers += [(f"x-ratelimit-{name}-{unit}".encode(), text.encode()) for name, text in values.items()]
    return headers


def format_duration(seconds: float) -> str:
    """As in `6m0s`, `1.5s` and `120ms`."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
