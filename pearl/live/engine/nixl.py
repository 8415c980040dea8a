"""vLLM's NIXL connector as PEARL runs it. vLLM loads this module, by name, inside the engine's own processes.

vLLM makes one connector in the scheduler's process, and one in that of each worker. Memory is registered with NIXL by
the workers; the scheduler hands the addresses to peers that ask, under the engine's id.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector, NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

from pearl.live.engine.handover import PROGRESS_DELAY_ENV, REGISTRATION
from pearl.live.engine.process import die_with_parent
from pearl.live.engine.steps import STEPS, StepMeter


class StepStats(NixlKVConnectorStats):  # type: ignore[misc]  # vLLM is not typed for us
    """NIXL's statistics, empty as they may be, and an engine step."""

    def is_empty(self) -> bool:
        """Whether there is nothing to pass on."""
        return not self.data[STEPS] and bool(super().is_empty())


class PearlNixlConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM is not typed for us
    """Polls at the device profile's pace, ends with its parent, gives up what it keeps, and can register anew.

    On the scheduler it also measures every step, and sends the measurement along with NIXL's statistics.
    """

    connector_worker: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        die_with_parent()
        if delay := os.environ.get(PROGRESS_DELAY_ENV):
            _slow_progress_thread(int(delay))
        self._meter = StepMeter()
        super().__init__(*args, **kwargs)
        self._model = self._vllm_config.model_config.model

    def release_kept(self) -> int:
        """Let every lease on a kept KV cache end with the next step; returns how many there were."""
        leases = self.connector_worker._reqs_to_send
        for request in leases:
            leases[request] = 0.0
        return len(leases)

    def register_anew(self, engine_id: str) -> bytes:
        """On a worker: register the KV cache's memory as another engine's; returns what peers need to reach it.

        Peers that knew the old id meet the new one at the same address, shake hands again, and drop the old.
        """
        old = self.connector_worker
        # A reload of weights leaves its own path there, and peers refuse who names another model than they began with.
        old.vllm_config.model_config.model = self._model
        caches, copy_blocks = old.device_kv_caches, old.copy_blocks
        old.shutdown()
        self.engine_id = engine_id
        self.connector_worker = NixlPullConnectorWorker(old.vllm_config, engine_id, old.kv_cache_config)
        if copy_blocks is not None:
            self.connector_worker.set_host_xfer_buffer_ops(copy_blocks)
        self.connector_worker.register_kv_caches(caches)
        payload: bytes = _msgpack().encode(self.get_handshake_metadata())
        return payload

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """On the scheduler: a step is composed."""
        self._meter.scheduled(scheduler_output)
        return super().build_connector_meta(scheduler_output)

    def get_kv_connector_stats(self) -> Any:
        """On the scheduler: a step has ended. On a worker: NIXL's own statistics, with room for the scheduler's."""
        if self.connector_worker is not None:
            stats = super().get_kv_connector_stats()
            if stats is not None:
                stats.data.setdefault(STEPS, [])
            return stats
        step = self._meter.ended()
        stats = StepStats()
        stats.data[STEPS] = [] if step is None else [step.row()]
        return stats

    def on_new_request(self, request: Any) -> None:
        """On the scheduler: take a registration that a request brings; see `register_anew`."""
        params = request.kv_transfer_params
        if params and (registration := params.pop(REGISTRATION, None)):
            self._serve_registration(registration)
        super().on_new_request(request)

    def _serve_registration(self, registration: Mapping[str, Any]) -> None:
        scheduler = self.connector_scheduler
        scheduler._stop_event.set()
        scheduler._nixl_handshake_listener_t.join()
        scheduler._nixl_handshake_listener_t = None
        scheduler._stop_event = threading.Event()
        scheduler.engine_id = registration["engine_id"]
        decoder = _msgpack().Decoder(NixlHandshakePayload)
        scheduler.set_xfer_handshake_metadata(
            {
                (pipeline_rank, tensor_rank): decoder.decode(bytes.fromhex(payload))
                for pipeline_rank, tensor_rank, payload in registration["ranks"]
            }
        )


def _msgpack() -> Any:
    """The encoding of vLLM's handshakes; a dependency of vLLM, and not of ours."""
    return importlib.import_module("msgspec.msgpack")


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
