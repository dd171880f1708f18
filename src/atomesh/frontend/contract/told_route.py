"""Routes that bring their own place in the OpenAPI document, from whoever adds them to the application."""

from collections.abc import Iterable

from starlette.routing import Route

from atomesh.frontend.contract.operation import Operations


class ToldRoute(Route):
    """As `route`; what may be asked of it is in `operations`."""

    def __init__(self, route: Route, operations: Operations) -> None:
        super().__init__(route.path, route.endpoint, methods=sorted(route.methods or ("GET",)))
        self.operations = operations


def told(routes: Iterable[Route], operations: Operations) -> list[ToldRoute]:
    return [ToldRoute(route, operations) for route in routes]
