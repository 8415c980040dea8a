"""The network of a disaggregated pool: prefill workers, KV transfer, decode workers."""

from __future__ import annotations

import numpy as np

from pearl.core.engine import EngineProfile
from pearl.makespan.cache import AffinityCache, Cache, RoundRobinCache
from pearl.makespan.costs import decode_step_s
from pearl.makespan.cycle import FIRST_SHARES, NEXT_SHARES, Cycle, fixed_point
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages
from pearl.makespan.station import (
    LEAST_DECODE_S,
    PrefillWork,
    cyclic_s,
    fcfs_other_s,
    first_step_prompts,
    hot_spot_s,
    in_step_s,
    shared_s,
    synchrony,
    turn_variance_s2,
)

LEAST_FED = 0.5
"""Least share of its memory that a decode worker is taken to use: a place freed by one of the sequences that block the
prefill worker lets it go on, so that starvation never lasts (measured against the simulator)."""


class DisaggregatedNetwork:
    """Cycle of a turn where `prefilling` trajectories share a prefill worker and `decoding` a decode worker.

    A prefill worker keeps the prompts that it computed, not the outputs: those it prefills again on the next turn. A
    decode worker keeps whole contexts as far as its memory goes, and pulls what it lacks.
    """

    def __init__(
        self,
        stages: Stages,
        engine: EngineProfile,
        *,
        prefilling: Floats,
        decoding: Floats,
        prefill_workers: Floats,
        decode_workers: Floats,
        context_ratio: Floats,
        prefill_cache: Cache,
        decode_cache: Cache,
        whole: bool,
    ) -> None:
        self._stages = stages
        self._engine = engine
        self._prefilling = prefilling
        self._decoding = decoding
        self._prefill_cache = prefill_cache
        self._decode_cache = decode_cache
        self._prompt = stages.cached_tokens + stages.new_tokens
        # Under round robin the cache's own share leaves outputs out; under affinity the last turn's is left out here.
        kept = stages.cached_tokens - stages.previous_output_tokens if whole else stages.cached_tokens
        self._work = PrefillWork(engine, stages, held_tokens=np.maximum(kept, 0.0), whole=whole)
        self._held = np.maximum(stages.running_tokens * context_ratio, 1.0)
        self._prefix = np.maximum(self._prompt * context_ratio, 1.0)
        self._sharing = first_step_prompts(stages, engine.chunk_tokens)
        self._most = np.clip(engine.kv_decode_tokens / self._held, 1.0, engine.max_sequences)
        self._most_prefills = np.clip(engine.kv_colocated_tokens / self._prefix, 1.0, engine.max_sequences)
        # A finished prompt keeps its place on the prefill worker until its own decode worker has room, so that the few
        # prompts held there may all be for other decode workers: the chance that one is for a given worker.
        ready = prefill_workers * self._most_prefills
        fed = np.maximum(1 - (1 - 1 / decode_workers) ** ready, LEAST_FED)
        self._fed = fed if whole else np.ones_like(ready)
        self._prefill_workers = prefill_workers

    def solve(self, like: Cycle | None = None) -> Cycle:
        """The fixed point; `like` is one of a similar load to start from."""
        if like is None:
            state = fixed_point(self._update, self._start(), FIRST_SHARES)
        else:
            state = fixed_point(self._update, like.state, NEXT_SHARES)
        return self._cycle(state)

    def _start(self) -> Floats:
        ones = np.ones_like(self._prefilling)
        decode = self._stages.output_tokens * self._step_s(np.maximum(self._decoding / 2, 1.0))
        return np.stack((self._work.mean_s(ones), decode, 0 * ones, self._sending_s(ones), ones, ones))

    def _cycle(self, state: Floats) -> Cycle:
        respond, decode, admission, transfer, hit, _ = state
        work = self._work.mean_s(hit)
        cycle = self._stages.environment_s + respond + transfer + admission + decode
        hot_spot = self._hot_spot_s(work, hit, cycle)
        batch = np.clip(self._decoding * decode / cycle, 1.0, self._most)
        return Cycle(
            work_s=work,
            wait_s=np.maximum(respond - work, 0.0) + admission + hot_spot,
            transfer_s=transfer,
            decode_s=decode,
            step_s=self._step_s(batch),
            batch=batch,
            hit=hit,
            state=state,
        )

    def _hot_spot_s(self, work: Floats, hit: Floats, cycle: Floats) -> Floats:
        cache = self._prefill_cache
        if isinstance(cache, AffinityCache):
            return np.zeros_like(work)
        behind = cache.hit_behind_everybody(
            hit,
            memory_tokens=self._engine.kv_colocated_tokens,
            prefix_tokens=self._prefix,
            customers=self._prefilling,
        )
        several = self._prefill_workers > 1
        slow = self._prefilling * self._work.mean_s(behind)
        return several * hot_spot_s(self._prefilling * work / cycle, slow, cycle)

    def _step_s(self, batch: Floats) -> Floats:
        own = self._stages.running_tokens
        return decode_step_s(self._engine.decode, batch, own + (batch - 1) * self._held)

    def _sending_s(self, held: Floats) -> Floats:
        """Time on the link, latency left out, when the decode worker holds the share `held` of the earlier context."""
        transfer = self._engine.transfer
        tokens = self._prompt - held * self._stages.cached_tokens
        result: Floats = tokens * (transfer.bytes_per_token / transfer.bandwidth_bytes_per_s)
        return result

    def _update(self, state: Floats) -> Floats:
        respond, decode, admission, transfer, hit, held = state
        stages = self._stages
        cycle = stages.environment_s + respond + transfer + admission + decode
        work = self._work.mean_s(hit)
        found = self._prefill_hit(respond, work, admission + transfer, cycle)
        kept = self._decode_hit(respond, decode, transfer, cycle)
        token_s = decode / np.maximum(stages.output_tokens, 1.0)
        in_step = synchrony(stages, turn_variance_s2(stages, self._engine.prefill, token_s), cycle)
        respond = self._respond_s(work, hit, respond, cycle - respond, in_step)
        transfer = self._transfer_s(held, transfer, cycle - transfer)
        elsewhere = stages.environment_s + respond
        decode = self._decode_s(work, state, cycle, in_step)
        holding = transfer + decode
        admission = np.maximum(holding * (self._decoding / (self._most * self._fed) - 1) - elsewhere, 0.0)
        return np.stack((respond, decode, admission, transfer, found, kept))

    def _prefill_hit(self, respond: Floats, work: Floats, handing: Floats, cycle: Floats) -> Floats:
        """A prompt is pinned from its prefill until the decode worker has pulled it; queued, it may lose its prefix."""
        pinned_share = (np.minimum(respond, work) + handing) / cycle
        pinned = np.minimum(self._prefilling * pinned_share, self._most_prefills) * self._prefix
        return self._prefill_cache.hit(
            memory_tokens=np.maximum(self._engine.kv_colocated_tokens - pinned, 0.0),
            prefix_tokens=self._prefix,
            customers=self._prefilling,
            idle_share=1 - pinned_share,
        )

    def _decode_hit(self, respond: Floats, decode: Floats, transfer: Floats, cycle: Floats) -> Floats:
        stages = self._stages
        running = np.minimum(self._decoding * (decode + transfer) / cycle, self._most)
        return self._decode_cache.hit(
            memory_tokens=np.maximum(self._engine.kv_decode_tokens - running * self._held, 0.0),
            prefix_tokens=self._prefix + stages.output_tokens,
            customers=self._decoding,
            idle_share=(stages.environment_s + respond) / cycle,
        )

    def _respond_s(self, work: Floats, hit: Floats, respond: Floats, away: Floats, in_step: Floats) -> Floats:
        others = self._prefilling - 1
        added = self._work.added_s(hit, work)
        variation = self._work.variation(hit, work, found=self._prefill_cache.found)
        other = fcfs_other_s(work, added_s=added, variation=variation, response_s=respond)
        queued = shared_s(work, other, others=others, away_s=away)
        if isinstance(self._prefill_cache, RoundRobinCache):
            backlog = added * others - away
            queued = cyclic_s(queued, work, backlog_s=backlog, variation=variation, workers=self._prefill_workers)
        together = in_step_s(
            work, added, others=others, away_s=away, together=self._sharing, first_turn=self._stages.first_turn
        )
        result: Floats = queued + in_step * (together - queued)
        return result

    def _transfer_s(self, held: Floats, transfer: Floats, away: Floats) -> Floats:
        """A prefill worker's link sends one cache at a time; latencies overlap."""
        latency = self._engine.transfer.latency_s
        sending = self._sending_s(held)
        other = fcfs_other_s(sending, added_s=sending, variation=np.zeros_like(sending), response_s=transfer - latency)
        return latency + shared_s(sending, other, others=self._prefilling - 1, away_s=away + latency)

    def _decode_s(self, work: Floats, state: Floats, cycle: Floats, in_step: Floats) -> Floats:
        """Decode steps of the turn, after the one under way; the place of one that waits for memory is taken."""
        _, decode, admission, _, _, _ = state
        others = self._decoding - 1
        met = np.minimum(others * (decode + admission) / cycle, self._most - 1)
        tokens = np.maximum(self._stages.output_tokens - 1, 0.0)
        alone = self._step_s(np.ones_like(work))
        step = self._step_s(1 + met)
        slowed = tokens * (step - alone) / np.maximum(others * decode / cycle, 1e-9)
        apart = shared_s(tokens * alone, slowed, others=others, away_s=cycle - decode)
        spread = (self._prefilling - 1) * work / 2
        met_together = np.minimum(others * decode / (decode + spread), self._most - 1)
        together = tokens * self._step_s(1 + met_together)
        steps = apart + in_step * np.maximum(together - apart, 0.0)
        result: Floats = np.maximum(steps + np.minimum(met, 1.0) / 2 * step, LEAST_DECODE_S)
        return result
