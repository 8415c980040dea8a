"""The one module that knows vLLM's API. Where versions of vLLM differ, the difference is here.

vLLM is imported when an engine starts, and not before: its imports take seconds, and read the environment.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pearl.live.devices import SleepMethod
from pearl.live.engine.backend import Counters, EngineFacts, Output
from pearl.live.engine.config import EngineConfig
from pearl.live.engine.handover import PROGRESS_DELAY_ENV, REGISTRATION, Roles
from pearl.live.engine.steps import STEPS, EngineStep
from pearl.live.protocol import (
    EngineError,
    EngineFailedError,
    EngineLostError,
    EngineRefusedError,
    EngineUnavailableError,
    FinishReason,
    PromptReport,
    Sampling,
)

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LOST_LOGPROB = -9999.0
"""What vLLM writes for a log-probability of -inf."""
KEPT_STEPS = 4096
"""Steps kept until they are asked for: half a minute of the fastest engines."""


def set_environment(config: EngineConfig) -> None:
    """Set what vLLM and NIXL read at import and at start, for this process and its children."""
    os.environ.update(config.device.environment)
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = config.kv_host
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(config.kv_port)
    if config.device.progress_delay_us is not None:
        os.environ[PROGRESS_DELAY_ENV] = str(config.device.progress_delay_us)


async def start_vllm(config: EngineConfig, roles: Roles) -> VllmBackend:
    """Start an engine in child processes of this one; it belongs to the running event loop.

    Blocks the loop for the seconds that vLLM takes. Raises `EngineUnavailableError` where it cannot start.
    """
    set_environment(config)
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = {
        **config.device.engine_args,
        "model": str(config.model),
        "max_model_len": config.max_model_tokens,
        "max_num_seqs": config.max_sequences,
        "max_num_batched_tokens": config.max_batched_tokens,
        "tensor_parallel_size": config.tensor_parallel,
        "kv_transfer_config": KVTransferConfig(**roles.connector()),
        "worker_extension_cls": "pearl.live.engine.extension.PearlExtension",
        "skip_tokenizer_init": True,
        "enable_log_requests": False,
        # vLLM's own loggers gather what nobody reads here; ours is given below, and statistics are on with it.
        "disable_log_stats": True,
    }
    if config.kv_cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = config.kv_cache_bytes
    tally = _Tally()
    try:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[tally.logger()])
    except Exception as e:
        raise EngineUnavailableError(f"{config.worker}: vLLM did not start: {type(e).__name__}: {e}") from e
    return VllmBackend(
        engine=engine,
        sleep_method=config.device.sleep,
        vocabulary=int(engine.model_config.get_vocab_size()),
        end_token_ids=_end_token_ids(engine),
        tally=tally,
    )


def _end_token_ids(engine: Any) -> tuple[int, ...]:
    """The model's end tokens. Without a tokenizer vLLM knows none, and each leg must name them."""
    configured = engine.model_config.try_get_generation_config().get("eos_token_id")
    return tuple(configured) if isinstance(configured, list) else () if configured is None else (int(configured),)


@dataclass(slots=True)
class _Tally:
    """Sums over vLLM's iterations, kept per engine: vLLM's own registry is shared by all engines of a process."""

    computed: int = 0
    cached: int = 0
    transferred: int = 0
    kv_usage: float = 0.0
    steps: deque[EngineStep] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))

    def logger(self) -> Any:
        """A class of stat loggers that adds to this tally."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        tally = self

        class TallyLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is not typed for us
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
                tally.add(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                pass

        return TallyLogger

    def add(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        if scheduler_stats is not None:
            self.kv_usage = float(scheduler_stats.kv_cache_usage)
            rows = (getattr(scheduler_stats, "kv_connector_stats", None) or {}).get(STEPS, ())
            self.steps.extend(EngineStep.of(row) for row in rows)
        if iteration_stats is not None:
            source = iteration_stats.prompt_token_stats.get_by_source
            self.computed += int(source("local_compute"))
            self.cached += int(source("local_cache_hit"))
            self.transferred += int(source("external_kv_transfer"))


@dataclass(slots=True, kw_only=True)
class VllmBackend:
    """An `AsyncLLM` as a `Backend`."""

    engine: AsyncLLM
    sleep_method: SleepMethod
    vocabulary: int
    end_token_ids: tuple[int, ...]
    tally: _Tally = field(default_factory=_Tally)

    async def generate(
        self, leg: str, prompt: Sequence[int], sampling: Sampling, kv_params: Mapping[str, Any] | None
    ) -> AsyncGenerator[Output, None]:
        """Outputs of a leg; see `Backend`."""
        self._check_tokens(leg, prompt, sampling)
        try:
            parameters = _sampling_params(self._with_end(sampling), kv_params)
            async with aclosing(self.engine.generate({"prompt_token_ids": list(prompt)}, parameters, leg)) as outputs:
                first = True
                async for output in outputs:
                    yield _output(output, _prompt_report(output) if first else None)
                    first = False
        except (EngineError, GeneratorExit):
            raise
        except Exception as e:
            _translate(e)

    def _check_tokens(self, leg: str, prompt: Sequence[int], sampling: Sampling) -> None:
        """Without a tokenizer vLLM does not check token ids, and one outside of the vocabulary kills the engine."""
        if not prompt:
            raise EngineRefusedError(f"{leg}: the prompt is empty")
        for token in (*prompt, *sampling.stop_token_ids):
            if not 0 <= token < self.vocabulary:
                raise EngineRefusedError(f"{leg}: token {token} is outside of the vocabulary of {self.vocabulary}")

    def _with_end(self, sampling: Sampling) -> Sampling:
        if sampling.ignore_eos:
            return sampling
        return replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *self.end_token_ids))

    async def abort(self, legs: Collection[str]) -> None:
        """End legs with what they have; those that are gone are skipped."""
        await self.engine.abort(list(legs))

    async def pause(self) -> None:
        """See `Backend`; kept KV caches end with their leases, or with `release_kept`, and this waits for them."""
        await self.engine.pause_generation(mode="abort", clear_cache=True)

    async def resume(self) -> None:
        """Schedule again."""
        await self.engine.resume_generation()

    async def reset_prefix_cache(self) -> bool:
        """See `Backend`."""
        return bool(await self.engine.reset_prefix_cache())

    async def release_kept(self) -> int:
        """See `Backend`; the blocks come free with the engine's next step."""
        return int(sum(await self.engine.collective_rpc("pearl_release_kept")))

    async def reload_weights(self, directory: Path, version: int) -> None:
        """See `Backend`. Never `load_weights` on live parameters: on CPU they are packed, and it corrupts them."""
        try:
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
            if hasattr(self.engine, "update_weight_version"):
                await self.engine.update_weight_version(str(version))
        except Exception as e:
            _translate(e)

    async def sleep(self) -> int:
        """See `Backend`; the bytes are those of this engine's processes where the method is emulated."""
        match self.sleep_method:
            case SleepMethod.EMULATED:
                return int(sum(await self.engine.collective_rpc("pearl_drop_kv_pages")))
            case SleepMethod.DEVICE:
                before = sum(await self.engine.collective_rpc("pearl_device_bytes"))
                await self.engine.sleep(level=2)
                return int(before - sum(await self.engine.collective_rpc("pearl_device_bytes")))

    async def wake(self, weights: Path) -> None:
        """See `Backend`."""
        if self.sleep_method is SleepMethod.DEVICE:
            await self.engine.wake_up(["weights"])
            await self.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)})
            await self.engine.wake_up(["kv_cache"])

    async def register_anew(self) -> None:
        """See `Backend`. A request of one token carries the new addresses to the scheduler's side of the connector."""
        engine_id = str(uuid.uuid4())
        ranks = await self.engine.collective_rpc("pearl_register_anew", args=(engine_id,))
        carrier = {REGISTRATION: {"engine_id": engine_id, "ranks": [list(rank) for rank in ranks]}}
        sampling = Sampling(max_tokens=1, ignore_eos=True)
        async with aclosing(self.generate(f"register-{engine_id}", (0,), sampling, carrier)) as outputs:
            async for _ in outputs:
                pass

    async def check(self) -> None:
        """See `Backend`."""
        if self.engine.errored:
            raise EngineLostError("the engine is dead")

    def counters(self) -> Counters:
        """See `Backend`; as of the engine's last step."""
        tally = self.tally
        return Counters(
            computed=tally.computed, cached=tally.cached, transferred=tally.transferred, kv_usage=tally.kv_usage
        )

    def facts(self) -> EngineFacts:
        """See `Backend`."""
        cache = self.engine.vllm_config.cache_config
        sized = getattr(cache, "kv_cache_size_tokens", None)
        return EngineFacts(
            gpu=_device_name(),
            kv_tokens=int(sized or (cache.num_gpu_blocks or 0) * cache.block_size),
            kv_bytes_per_token=_kv_bytes_per_token(self.engine.vllm_config),
        )

    def take_steps(self) -> tuple[EngineStep, ...]:
        """See `Backend`; the newest `KEPT_STEPS`."""
        steps = tuple(self.tally.steps)
        self.tally.steps.clear()
        return steps

    def shutdown(self) -> None:
        """See `Backend`; blocks until they ended."""
        self.engine.shutdown()


def _sampling_params(sampling: Sampling, kv_params: Mapping[str, Any] | None) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        logprobs=0 if sampling.logprobs else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={"kv_transfer_params": dict(kv_params)} if kv_params else None,
    )


def _prompt_report(output: Any) -> PromptReport | None:
    """What vLLM says of a prompt with its first token; None where statistics are off."""
    stats = output.metrics
    if stats is None or not stats.scheduled_ts:
        return None
    return PromptReport(
        cached_tokens=int(output.num_cached_tokens or 0),
        queue_s=max(0.0, float(stats.scheduled_ts - stats.queued_ts)),
        prefill_s=max(0.0, float(stats.first_token_ts - stats.scheduled_ts)),
    )


def _device_name() -> str:
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except NotImplementedError:
        return str(current_platform.device_type)


def _kv_bytes_per_token(config: Any) -> float:
    """Bytes of one token's keys and values over all layers and ranks; MLA keeps one latent vector in their place."""
    model, parallel = config.model_config, config.parallel_config
    vectors = 1 if model.use_mla else 2 * model.get_num_kv_heads(parallel) * parallel.tensor_parallel_size
    return float(vectors * model.get_head_size() * model.get_num_layers(parallel) * _kv_item_bytes(config))


def _kv_item_bytes(config: Any) -> int:
    """Bytes of one number in the KV cache, whose type may be smaller than the model's."""
    kept = str(config.cache_config.cache_dtype)
    return 1 if kept.startswith("fp8") else int(config.model_config.dtype.itemsize)


def _output(output: Any, prompt: PromptReport | None) -> Output:
    completion = output.outputs[0]
    tokens = tuple(int(token) for token in completion.token_ids)
    if completion.finish_reason == "error":
        raise EngineFailedError("vLLM failed the leg: its KV cache could not be pulled")
    return Output(
        token_ids=tokens,
        logprobs=_logprobs(tokens, completion.logprobs),
        finish=FinishReason(completion.finish_reason) if completion.finish_reason else None,
        kv_params=output.kv_transfer_params,
        prompt=prompt,
    )


def _logprobs(tokens: Sequence[int], positions: Any) -> tuple[float, ...]:
    """The log-probability of each token; vLLM gives a mapping from token to entry per position."""
    if not positions:
        return ()
    chosen = zip(tokens, positions, strict=True)
    return tuple(max(float(entries[token].logprob), LOST_LOGPROB) for token, entries in chosen)


def _translate(error: Exception) -> NoReturn:
    """Raise vLLM's error as one of the engine seam."""
    from vllm.v1.engine.exceptions import EngineDeadError

    text = f"{type(error).__name__}: {error}"
    if isinstance(error, EngineDeadError):
        raise EngineLostError(text) from None
    client_error = _client_error()
    if isinstance(error, (ValueError, *client_error)):
        raise EngineRefusedError(text) from None
    raise EngineFailedError(text) from error


def _client_error() -> tuple[type[Exception], ...]:
    """The class of vLLM's errors for faults of the request, which older versions raise as ValueError."""
    try:
        from vllm.exceptions import VLLMClientError
    except ImportError:
        return ()
    return (VLLMClientError,)
