"""The paper's model: mean turns, decode batches thinned by the bubbles of waiting sequences.

docs/mathematics.md derives every formula. B trajectories on N workers meet as m = max(1, B/N) per worker; K turns each.

    colocated      T = K·(e + t_prefill(N) + t_decode(N)), decode stretched by the others' prefills
    disaggregated  T = K·e + max(K·(t_prefill(N_P) + transfer), K·t_decode(N_D))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pearl.core.cluster import Counts, Mode
from pearl.core.decision import PathTimes
from pearl.core.engine import EngineProfile
from pearl.core.problem import MakespanTables
from pearl.core.workload import Workload
from pearl.makespan.batch import BatchProfile, batch_profile, transfer_s, unloaded_prefill_s
from pearl.makespan.sample import Floats
from pearl.makespan.table import column_ms, unserved
from pearl.makespan.turn import colocated_turn, disaggregated_decode, per_worker_customers, queued_s


class Bubble:
    """The predictor `bubble`."""

    id = "bubble"

    def tables(self, workload: Workload, engine: EngineProfile, *, workers: int) -> MakespanTables:
        """Makespans for every count up to `workers`; disaggregated ones separate into two columns."""
        profile = batch_profile(workload)
        counts = np.arange(1, workers + 1)
        turn = colocated_turn(profile, engine, counts)
        prefill, decode = _prefill_path_s(profile, engine, counts), _decode_path_s(profile, engine, counts)
        environment = profile.turns * profile.environment_s
        whole = environment + profile.turns * (turn.prefill_s + turn.decode_s)
        return MakespanTables(
            colocated_ms=column_ms(whole, holds=profile.longest_tokens <= engine.kv_colocated_tokens),
            prefill_ms=column_ms(environment + prefill, holds=profile.longest_tokens <= engine.kv_colocated_tokens),
            decode_ms=column_ms(environment + decode, holds=profile.longest_tokens <= engine.kv_decode_tokens),
        )

    def paths(self, workload: Workload, engine: EngineProfile, counts: Counts) -> PathTimes:
        """Parts of the makespan of one configuration, in seconds."""
        profile = batch_profile(workload)
        match counts.mode:
            case Mode.COLOCATED if counts.colocated == counts.serving:
                return self._colocated_paths(profile, engine, counts)
            case Mode.DISAGGREGATED if counts.prefill and counts.decode:
                return self._disaggregated_paths(profile, engine, counts)
            case _:
                return unserved()

    def _colocated_paths(self, profile: BatchProfile, engine: EngineProfile, counts: Counts) -> PathTimes:
        if profile.longest_tokens > engine.kv_colocated_tokens:
            return unserved()
        turn = colocated_turn(profile, engine, np.array([counts.colocated]))
        prefill, decode = float(turn.prefill_s[0]), float(turn.decode_s[0])
        cycle = profile.environment_s + prefill + decode
        rate = profile.trajectories / counts.colocated / cycle
        return PathTimes(
            makespan_s=profile.turns * cycle,
            prefill_s=profile.turns * prefill,
            transfer_s=0.0,
            decode_s=profile.turns * decode,
            environment_s=profile.turns * profile.environment_s,
            prefix_hit_rate=_full_hits(profile),
            prefill_utilisation=min(1.0, rate * unloaded_prefill_s(profile, engine)),
            decode_utilisation=min(1.0, float(turn.batch[0])),
        )

    def _disaggregated_paths(self, profile: BatchProfile, engine: EngineProfile, counts: Counts) -> PathTimes:
        if profile.longest_tokens > min(engine.kv_colocated_tokens, engine.kv_decode_tokens):
            return unserved()
        environment = profile.turns * profile.environment_s
        prefill = float(_prefill_path_s(profile, engine, np.array([counts.prefill]))[0])
        decode = float(_decode_path_s(profile, engine, np.array([counts.decode]))[0])
        makespan = environment + max(prefill, decode)
        work = profile.trajectories * profile.turns * unloaded_prefill_s(profile, engine)
        transfer = profile.turns * transfer_s(profile, engine)
        turn = disaggregated_decode(profile, engine, np.array([counts.decode]))
        return PathTimes(
            makespan_s=makespan,
            prefill_s=prefill - transfer,
            transfer_s=transfer,
            decode_s=decode,
            environment_s=environment,
            prefix_hit_rate=_full_hits(profile),
            prefill_utilisation=min(1.0, work / (counts.prefill * makespan)),
            decode_utilisation=min(1.0, float(turn.batch[0])),
        )


def _decode_path_s(profile: BatchProfile, engine: EngineProfile, workers: NDArray[np.int_]) -> Floats:
    return profile.turns * disaggregated_decode(profile, engine, workers).decode_s


def _prefill_path_s(profile: BatchProfile, engine: EngineProfile, workers: NDArray[np.int_]) -> Floats:
    """Prefill and transfer of all of a trajectory's turns, while decode is unloaded."""
    transfer = transfer_s(profile, engine)
    alone = profile.output_tokens * engine.decode.seconds(1, profile.running_tokens)
    away = profile.environment_s + transfer + alone
    queued = queued_s(unloaded_prefill_s(profile, engine), per_worker_customers(profile, workers), away)
    return profile.turns * (queued + transfer)


def _full_hits(profile: BatchProfile) -> float:
    """Share of prompt tokens found in the cache when no prefix is ever evicted, as the paper assumes."""
    prompt = profile.cached_tokens + profile.new_tokens
    return profile.cached_tokens / prompt if prompt else 0.0
