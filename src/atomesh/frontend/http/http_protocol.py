"""HTTP/1.1 protocol, with our error body for what is no HTTP: uvicorn.Config(http=HttpProtocol)."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from atomesh.errors import InvalidRequestError
from atomesh.frontend.http.error_answers import error_body
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.request_id import mint_request_id


class HttpProtocol(HttpToolsProtocol):
    def send_400_response(self, msg: str) -> None:
        """Answers a request that could not be parsed, and closes."""
        body = encode_json(error_body(InvalidRequestError(msg)))
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {mint_request_id().decode()}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
