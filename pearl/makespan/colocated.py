"""The network of a colocated pool: each worker prefills and decodes its trajectories in shared steps."""

from __future__ import annotations

import numpy as np

from pearl.core.engine import EngineProfile
from pearl.makespan.cache import Cache
from pearl.makespan.costs import decode_step_s
from pearl.makespan.cycle import FIRST_SHARES, NEXT_SHARES, Cycle, fixed_point
from pearl.makespan.sample import Floats
from pearl.makespan.stages import Stages
from pearl.makespan.station import (
    LEAST_DECODE_S,
    PrefillWork,
    fcfs_other_s,
    first_step_prompts,
    in_step_s,
    shared_s,
    synchrony,
    turn_variance_s2,
)


class ColocatedNetwork:
    """Cycle of a turn on a worker that `customers` trajectories share, shape (stages, configurations)."""

    def __init__(
        self,
        stages: Stages,
        engine: EngineProfile,
        *,
        customers: Floats,
        context_ratio: Floats,
        cache: Cache,
        whole: bool,
    ) -> None:
        """`context_ratio`: contexts of the others over those of the stage; `whole`: see PrefillWork."""
        self._stages = stages
        self._engine = engine
        self._customers = customers
        self._cache = cache
        self._work = PrefillWork(engine, stages, held_tokens=stages.cached_tokens, whole=whole)
        self._held = np.maximum(stages.running_tokens * context_ratio, 1.0)
        self._prefix = stages.cached_tokens * context_ratio
        self._sharing = first_step_prompts(stages, engine.chunk_tokens)
        self._most = np.clip(engine.kv_colocated_tokens / self._held, 1.0, engine.max_sequences)

    def solve(self, like: Cycle | None = None) -> Cycle:
        """The fixed point; `like` is one of a similar load to start from."""
        if like is None:
            state = fixed_point(self._update, self._start(), FIRST_SHARES)
        else:
            state = fixed_point(self._update, like.state, NEXT_SHARES)
        return self._cycle(state)

    def _start(self) -> Floats:
        ones = np.ones_like(self._customers)
        work = self._work.mean_s(ones)
        decode = self._stages.output_tokens * self._step_s(np.maximum(self._customers / 2, 1.0))
        return np.stack((work, decode, 0 * ones, ones))

    def _cycle(self, state: Floats) -> Cycle:
        respond, decode, admission, hit = state
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
            state=state,
        )

    def _length(self, respond: Floats, decode: Floats, admission: Floats) -> Floats:
        cycle: Floats = self._stages.environment_s + admission + respond + decode
        return cycle

    def _step_s(self, batch: Floats) -> Floats:
        own = self._stages.running_tokens
        return decode_step_s(self._engine.decode, batch, own + (batch - 1) * self._held)

    def _update(self, state: Floats) -> Floats:
        respond, decode, admission, hit = state
        cycle = self._length(respond, decode, admission)
        found = self._hit(respond, decode, hit, cycle)
        work = self._work.mean_s(hit)
        token_s = decode / np.maximum(self._stages.output_tokens, 1.0)
        in_step = synchrony(self._stages, turn_variance_s2(self._stages, self._engine.prefill, token_s), cycle)
        # Of those that wait for memory none is met; at most `most` are served at once.
        others = np.minimum(self._customers - 1, (self._most - 1) * cycle / (respond + decode))
        respond = self._respond_s(work, state, cycle, others, in_step)
        decode = self._decode_s(work, state, respond, in_step)
        serving = respond + decode
        admission = np.maximum(serving * (self._customers / self._most - 1) - self._stages.environment_s, 0.0)
        return np.stack((respond, decode, admission, found))

    def _hit(self, respond: Floats, decode: Floats, hit: Floats, cycle: Floats) -> Floats:
        # A prefix is pinned only once its prefill begins: what waits in the queue may still lose it.
        serving = decode + np.minimum(respond, self._work.mean_s(hit))
        running = np.minimum(self._customers * serving / cycle, self._most)
        return self._cache.hit(
            memory_tokens=np.maximum(self._engine.kv_colocated_tokens - running * self._held, 0.0),
            prefix_tokens=self._prefix,
            customers=self._customers,
            idle_share=(cycle - serving) / cycle,
        )

    def _respond_s(self, work: Floats, state: Floats, cycle: Floats, others: Floats, in_step: Floats) -> Floats:
        """From admission to the first token: the step under way, the prefills before it, its own, with decode."""
        respond, decode, _, hit = state
        added = self._work.added_s(hit, work)
        variation = self._work.variation(hit, work, found=self._cache.found)
        other = fcfs_other_s(work, added_s=added, variation=variation, response_s=respond)
        queued = shared_s(work, other, others=others, away_s=cycle - respond)
        together = in_step_s(
            work,
            added,
            others=np.minimum(others, self._most - 1),
            away_s=cycle - respond,
            together=self._sharing,
            first_turn=self._stages.first_turn,
        )
        decoding = (others + 1) * decode / cycle
        step = self._step_s(np.clip(decoding, 1.0, self._most))
        mixed = np.minimum(decoding, 1.0)
        surcharge = 1 + (self._engine.mixed_step_factor - 1) * mixed
        result: Floats = surcharge * (queued + in_step * (together - queued)) + step * (1 + mixed / 2)
        return result

    def _decode_s(self, work: Floats, state: Floats, respond: Floats, in_step: Floats) -> Floats:
        """Decode steps of the turn, and the prefills of others that stretch them.

        A prefill under way all but halts decode, so decode steps run while none is: the others then decode, wait for
        memory (and their places are taken), or are in the environment.
        """
        _, decode, admission, hit = state
        others = self._customers - 1
        outside = self._stages.environment_s + admission
        met = np.minimum(others * (decode + admission) / (outside + decode), self._most - 1)
        tokens = np.maximum(self._stages.output_tokens - 1, 0.0)
        alone = self._step_s(np.ones_like(work))
        step = self._step_s(1 + met)
        slowed = tokens * (step - alone) / np.maximum(others, 1e-9)
        factor = self._engine.mixed_step_factor
        stall = factor * work + (factor - 1) * step
        share = decode / (outside + decode)
        stalled = stall * (outside + decode) / (outside + respond + decode)
        apart = shared_s(tokens * alone, slowed / share + stalled, others=others, away_s=outside)
        inside = np.minimum(others, self._most - 1)
        spread = inside * work / 2
        met_together = inside * decode / (decode + spread)
        stalled_together = factor * self._work.added_s(hit, work) + (factor - 1) * step
        # At first half of the others prefill after it; later all but those that prefilled together with it.
        later = np.maximum(inside + 1 - self._sharing, 0.0) * share
        stalls = np.where(
            self._stages.first_turn > 0, later, inside / 2 * np.minimum(1.0, decode / (2 * spread + 1e-9))
        )
        together = tokens * self._step_s(1 + met_together) + stalls * stalled_together
        result: Floats = np.maximum(apart + in_step * (together - apart), LEAST_DECODE_S)
        return result
