"""A server for the tests of the comparison: python scripted_server.py PORT [TOKEN] [miscount].

One word is one token; the reply is "x" words at a steady pace. It says on stderr what it was asked.
"""

from __future__ import annotations

import http.server
import json
import sys
from typing import Any

TOKEN = sys.argv[2] if len(sys.argv) > 2 else ""
MISCOUNT = "miscount" in sys.argv
seen: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "scripted"}]}) if self._allowed() else self._json(401, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            self._json(401, {})
            return
        words, count = body["prompt"].split(), body["max_tokens"]
        sys.stderr.write(json.dumps({**body, "prompt": len(words)}) + "\n")
        kept = max((len(old) for old in seen if body["prompt"].startswith(old)), default=0)
        cached = len(body["prompt"][:kept].split())
        seen.append(body["prompt"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(count):
            self._event({"choices": [{"text": " x"}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": len(words) + MISCOUNT, "completion_tokens": count, **details}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _allowed(self) -> bool:
        return not TOKEN or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    if TOKEN:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        sys.stdout.write(json.dumps({"type": "ready", "url": url, "token": TOKEN}) + "\n")
        sys.stdout.flush()
    server.serve_forever()
