"""A local model server with OpenAI's chat protocol and scripted answers."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[list[dict[str, Any]]], str]
"""Function from a conversation to the answer."""


@contextlib.contextmanager
def stub_model(script: Script) -> Iterator[tuple[str, list[list[dict[str, Any]]]]]:
    """Run the server; yield its base URL and the conversations that it received."""
    conversations: list[list[dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
            conversations.append(messages)
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": script(messages)},
            }
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
            content = json.dumps(body | {"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", conversations
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
