"""A client of the language server: a real process, spoken to over its pipes."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import Any

URI = "file:///tmp/a%20text.shard"


class Client:
    """Starts ``shardlang lsp`` and speaks to it; every wait ends after ``PATIENCE`` seconds."""

    PATIENCE = 30

    def __init__(self, encodings: list[str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shardlang", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._listen, daemon=True).start()
        general = {"general": {"positionEncodings": encodings}} if encodings else {}
        self.capabilities = self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": general})
        self.tell("initialized", {})

    def _listen(self) -> None:
        out = self.process.stdout
        assert out is not None
        while True:
            length = 0
            while (line := out.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if length == 0:
                return
            self._messages.put(json.loads(out.read(length)))

    def send_bytes(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def _send(self, message: dict[str, Any]) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        """The result of a request. An error of the server's is an ``AssertionError``."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        answer = self._wait(lambda m: m.get("id") == self._number)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _wait(self, wanted: Any) -> dict[str, Any]:
        while True:
            message = self._messages.get(timeout=self.PATIENCE)
            if wanted(message):
                return message

    def open(self, text: str, uri: str = URI) -> list[dict[str, Any]]:
        """Opens a text (again, if it was open) and waits for its diagnostics."""
        self.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        item = {"uri": uri, "languageId": "shardlang", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": item})
        return self._published(uri, 1)

    def change(self, text: str, version: int, uri: str = URI) -> list[dict[str, Any]]:
        """Changes the whole text and waits for its diagnostics."""
        document = {"uri": uri, "version": version}
        self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        return self._published(uri, version)

    def _published(self, uri: str, version: int) -> list[dict[str, Any]]:
        def wanted(message: dict[str, Any]) -> bool:
            params = message.get("params", {})
            published = message.get("method") == "textDocument/publishDiagnostics"
            return published and params["uri"] == uri and params.get("version") == version

        return self._wait(wanted)["params"]["diagnostics"]

    def at(self, method: str, line: int, character: int, uri: str = URI) -> Any:
        """A request about a position."""
        position = {"line": line, "character": character}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position})

    def close(self) -> int:
        """Ends the server as the protocol wants it; its exit status."""
        self.ask("shutdown", None)
        self.tell("exit", None)
        try:
            return self.process.wait(self.PATIENCE)
        finally:
            self.process.kill()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
