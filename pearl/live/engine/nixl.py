"""vLLM's NIXL connector as PEARL runs it. vLLM loads this module, by name, inside the engine's own processes."""

from __future__ import annotations

import importlib
import os
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector

from pearl.live.engine.process import die_with_parent

PROGRESS_DELAY_ENV = "PEARL_NIXL_PROGRESS_DELAY_US"


class PearlNixlConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM is not typed for us
    """Polls at the device profile's pace, ends with its parent, and can give up what it keeps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        die_with_parent()
        if delay := os.environ.get(PROGRESS_DELAY_ENV):
            _slow_progress_thread(int(delay))
        super().__init__(*args, **kwargs)

    def release_kept(self) -> int:
        """Let every lease on a kept KV cache end with the next step; returns how many there were."""
        leases = self.connector_worker._reqs_to_send
        for request in leases:
            leases[request] = 0.0
        return len(leases)


def _slow_progress_thread(delay_us: int) -> None:
    """Set the delay that NIXL's Python API hard-codes to 0, by standing between it and its binding."""
    api: Any = importlib.import_module("nixl._api")
    if isinstance(api.nixlBind, _SlowBinding):
        return
    native = api.nixlBind.nixlAgentConfig

    def set_field(config: Any, name: str, value: Any) -> None:
        native.__setattr__(config, name, delay_us if name == "pthrDelay" else value)

    api.nixlBind = _SlowBinding(api.nixlBind, type("SlowConfig", (native,), {"__setattr__": set_field}))


class _SlowBinding:
    """NIXL's binding, but for the class of agent configurations."""

    def __init__(self, binding: Any, config: type) -> None:
        self._binding = binding
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return self._config if name == "nixlAgentConfig" else getattr(self._binding, name)
