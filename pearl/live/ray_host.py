"""The process that holds an embedded Ray cluster: `python -m pearl.live.ray_host`, driven by `pearl.live.embedded`.

A process of its own, because Ray's nodes take over the SIGTERM handler of the process that starts them, start in its
main thread only, block it for seconds, and die with the thread that started them.

Requests are JSON lines on standard input, each answered by one line on the standard output that it began with:
`{"add": NAME, "arguments": {…}}` gives `{"address": HOST:PORT}`; `{"remove": NAME, "graceful": true}` gives `{}`; what
fails gives `{"error": TEXT}`. The first node is the head. The end of the input, and so of the parent, ends all nodes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any


class Host:
    """The nodes, by name."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._ray: Any = Cluster()
        self._nodes: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked."""
        match request:
            case {"add": str(name), "arguments": dict(arguments)}:
                self._nodes[name] = self._ray.add_node(**arguments)
                return {"address": self._ray.address}
            case {"remove": str(name), "graceful": bool(graceful)}:
                if node := self._nodes.pop(name, None):
                    self._ray.remove_node(node, allow_graceful=graceful)
                return {}
            case _:
                return {"error": f"unknown request {request}"}

    def close(self) -> None:
        """End all nodes."""
        self._ray.shutdown()


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer every request, then end the nodes."""
    host = Host()
    try:
        for line in requests:
            try:
                answer = host.answer(json.loads(line))
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except BrokenPipeError:
        pass
    finally:
        host.close()


if __name__ == "__main__":
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
        serve(sys.stdin, answers)
