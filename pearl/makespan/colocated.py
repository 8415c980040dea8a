"""The network of a colocated pool: each worker prefills and decodes its trajectories in shared steps."""

from __future__ import annotations

import numpy as np

from pearl.core.engine import EngineProfile
from pearl.makespan.cache import Cache
from pearl.makespan.costs import decode_step_s
from pearl.makespan.cycle import Cycle, fixed_point
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages
from pearl.makespan.station import PrefillWork, fcfs_s, synchrony, turn_variance_s2


class ColocatedNetwork:
    """Cycle of a turn on a worker that `customers` trajectories share, shape (stages, configurations)."""

    def __init__(self, stages: Stages, engine: EngineProfile, customers: Floats, cache: Cache, *, whole: bool) -> None:
        self._stages = stages
        self._engine = engine
        self._customers = customers
        self._cache = cache
        self._work = PrefillWork(engine.prefill, stages, held_tokens=stages.cached_tokens, whole=whole)
        held = np.maximum(stages.running_tokens, 1.0)
        self._most = np.clip(engine.kv_colocated_tokens / held, 1.0, engine.max_sequences)

    def solve(self) -> Cycle:
        """The fixed point."""
        ones = np.ones_like(self._customers)
        work = self._work.mean_s(ones)
        decode = self._stages.output_tokens * self._step_s(np.maximum(self._customers / 2, 1.0))
        respond, decode, admission, hit = fixed_point(self._update, np.stack((work, decode, 0 * ones, ones)))
        work = self._work.mean_s(hit)
        batch = np.clip(self._customers * decode / self._length(respond, decode, admission), 1.0, self._most)
        return Cycle(
            work_s=work,
            wait_s=np.maximum(respond - work, 0.0) + admission,
            transfer_s=np.zeros_like(work),
            decode_s=decode,
            step_s=self._step_s(batch),
            batch=batch,
            hit=hit,
        )

    def _length(self, respond: Floats, decode: Floats, admission: Floats) -> Floats:
        cycle: Floats = self._stages.environment_s + admission + respond + decode
        return cycle

    def _step_s(self, batch: Floats) -> Floats:
        return decode_step_s(self._engine.decode, batch, batch * self._stages.running_tokens)

    def _update(self, state: Floats) -> Floats:
        respond, decode, admission, hit = state
        cycle = self._length(respond, decode, admission)
        work = self._work.mean_s(hit)
        token_s = decode / np.maximum(self._stages.output_tokens, 1.0)
        in_step = synchrony(self._stages, turn_variance_s2(self._stages, self._engine.prefill, token_s), cycle)
        next_respond = self._respond_s(work, state, cycle, in_step)
        next_decode = self._decode_s(work, decode, cycle, in_step)
        asking = self._customers * (respond + decode + admission) / cycle
        next_admission = np.maximum(asking / self._most - 1, 0.0) * (next_respond + next_decode)
        return np.stack((next_respond, next_decode, next_admission, self._hit(respond, decode, admission, cycle)))

    def _hit(self, respond: Floats, decode: Floats, admission: Floats, cycle: Floats) -> Floats:
        stages = self._stages
        running = np.minimum(self._customers * (respond + decode) / cycle, self._most)
        return self._cache.hit(
            memory_tokens=np.maximum(self._engine.kv_colocated_tokens - running * stages.running_tokens, 0.0),
            prefix_tokens=stages.cached_tokens,
            customers=self._customers,
            idle_share=(stages.environment_s + admission) / cycle,
        )

    def _respond_s(self, work: Floats, state: Floats, cycle: Floats, in_step: Floats) -> Floats:
        """From admission to the first token: the step under way, the prefills before it, its own, with decode."""
        respond, decode, _, hit = state
        others = (self._customers - 1) / cycle
        queued = fcfs_s(
            work,
            variation=self._work.variation(hit, work),
            others=others * respond,
            busy=np.minimum(others * work, 1.0),
        )
        together = np.maximum(queued, work * (1 + (self._customers - 1) / 2))
        decoding = self._customers * decode / cycle
        step = self._step_s(np.clip(decoding, 1.0, self._most))
        mixed = np.minimum(decoding, 1.0)
        surcharge = 1 + (self._engine.mixed_step_factor - 1) * mixed
        result: Floats = surcharge * ((1 - in_step) * queued + in_step * together) + step * (1 + mixed / 2)
        return result

    def _decode_s(self, work: Floats, decode: Floats, cycle: Floats, in_step: Floats) -> Floats:
        """Decode steps of the turn, and the prefills of others that stretch them."""
        others = self._customers - 1
        apart = 1 + others * decode / cycle
        spread = others * work / 2
        together = np.maximum(1 + others * decode / (decode + spread), apart)
        step = self._step_s(np.clip((1 - in_step) * apart + in_step * together, 1.0, self._most))
        met = others * decode / cycle
        met_together = np.maximum(met, others / 2 * np.minimum(1.0, decode / (2 * spread + 1e-9)))
        stalls = np.minimum((1 - in_step) * met + in_step * met_together, others)
        factor = self._engine.mixed_step_factor
        tokens = np.maximum(self._stages.output_tokens - 1, 0.0)
        result: Floats = tokens * step + stalls * (factor * work + (factor - 1) * step)
        return result
