"""What a client asks: OpenAI request bodies, checked strictly, to one neutral call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from pearl.live.protocol import Sampling, Tokenizer
from pearl.live.router.config import RouterConfig

REQUEST_ID = r"^[A-Za-z0-9._:-]{1,128}$"
SESSION_ID = r"^[!-~]{1,256}$"


class RefusedError(Exception):
    """A call that is answered with an error: its HTTP status, a stable code and a sentence."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class Kind(StrEnum):
    """Which OpenAI route the call came by."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, neutral of its route's spelling: equal calls ask for the same."""

    kind: Kind
    prompt: tuple[int, ...]
    sampling: Sampling
    session: str | None = None

    def to_json(self) -> str:
        """JSON, as journaled."""
        return _CALL.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Call:
        """The call that `to_json` wrote."""
        return _CALL.validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How one client wants the answer; not part of the call, so that a retry may choose anew."""

    request_id: str | None
    stream: bool
    usage_at_end: bool


_CALL = TypeAdapter(Call)

TOKEN_ID_LIMIT = 1 << 31
TokenId = Annotated[int, Field(ge=0, lt=TOKEN_ID_LIMIT)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """`stream_options` of OpenAI."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    include_usage: bool = False


class Body(BaseModel):
    """What both routes take. A field that could not be kept across an interruption is not among them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
    model: str
    min_tokens: int = Field(0, ge=0)
    temperature: Number = Field(1.0, ge=0, le=100)
    top_p: Number = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    """0 or -1: all tokens."""
    min_p: Number = Field(0.0, ge=0, le=1)
    repetition_penalty: Number = Field(1.0, gt=0)
    presence_penalty: Annotated[Number, Field(ge=0, le=0)] = 0.0
    """0 only: engines count output tokens, and a resumed leg's count starts anew."""
    frequency_penalty: Annotated[Number, Field(ge=0, le=0)] = 0.0
    """0 only, for the same reason."""
    seed: int | None = Field(None, ge=0, lt=1 << 31)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=1)
    """One answer per request."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = True
    """Accepted for vLLM's clients; token ids are always returned."""
    user: str | None = Field(None, max_length=256)
    request_id: str | None = Field(None, pattern=REQUEST_ID)
    session_id: str | None = Field(None, pattern=SESSION_ID)


class CompletionBody(Body):
    """Body of `POST /v1/completions`."""

    prompt: list[int] | str
    """Token ids; text only where the router has a tokenizer."""
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=1)
    """0 or 1: the log-probability of each sampled token."""


class ChatBody(Body):
    """Body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False


def read_call(
    kind: Kind, raw: bytes, headers: Mapping[str, str], *, config: RouterConfig, tokenizer: Tokenizer | None
) -> tuple[Call, Delivery]:
    """The call of a request body and its headers, and how to deliver the answer. Raises `RefusedError` (4xx, 501)."""
    if kind is Kind.CHAT and tokenizer is None:
        raise RefusedError(
            501, "no_tokenizer", "this router has no tokenizer: use /v1/completions with a prompt of token ids"
        )
    body = _validated(kind, raw)
    if body.model != config.model:
        raise RefusedError(404, "model_not_found", f"model {body.model!r} is not served; served: {config.model!r}")
    call = Call(
        kind=kind,
        prompt=_prompt(body, tokenizer),
        sampling=_sampling(body),
        session=_either("X-Session-Id", headers, "session_id", body.session_id, SESSION_ID),
    )
    _check_sizes(call, config)
    request_id = _either("X-Request-Id", headers, "request_id", body.request_id, REQUEST_ID)
    usage = body.stream_options is not None and body.stream_options.include_usage
    return call, Delivery(request_id=request_id, stream=body.stream, usage_at_end=usage)


def read_deadline_s(headers: Mapping[str, str], config: RouterConfig) -> float:
    """How long the call may take, from the header `X-Deadline-S`. Raises `RefusedError` (400)."""
    given = headers.get("X-Deadline-S")
    if given is None:
        return config.call_deadline_s
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= config.max_call_deadline_s:
        limit = f"{config.max_call_deadline_s:g}"
        raise RefusedError(
            400, "bad_deadline", f"X-Deadline-S is {given!r}; expected seconds, above 0 and up to {limit}"
        )
    return seconds


def read_json(raw: bytes) -> Any:
    """JSON as the standard has it: no NaN, no infinity, no endless nesting. Raises `RefusedError` (400)."""
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as e:
        raise RefusedError(400, "bad_json", f"the body is not valid JSON: {e}") from None


def refuse_faults(error: ValidationError) -> RefusedError:
    """Every fault of a body in one answer."""
    faults = {f"{'.'.join(str(part) for part in item['loc']) or 'the body'}: {item['msg']}" for item in error.errors()}
    return RefusedError(400, "bad_request", "; ".join(sorted(faults)[:20]))


def _validated(kind: Kind, raw: bytes) -> CompletionBody | ChatBody:
    model = CompletionBody if kind is Kind.COMPLETION else ChatBody
    try:
        return model.model_validate(read_json(raw))
    except ValidationError as e:
        raise refuse_faults(e) from None


def _prompt(body: CompletionBody | ChatBody, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    if isinstance(body, CompletionBody) and isinstance(body.prompt, list):
        return tuple(body.prompt)
    if tokenizer is None:
        raise RefusedError(400, "no_tokenizer", "prompt is text, and this router has no tokenizer: send token ids")
    try:
        if isinstance(body, ChatBody):
            return tuple(tokenizer.encode_chat(body.messages))
        return tuple(tokenizer.encode(str(body.prompt)))
    except (ValueError, KeyError, TypeError) as e:
        raise RefusedError(400, "bad_prompt", f"the tokenizer refuses the prompt: {e}") from None


def _sampling(body: CompletionBody | ChatBody) -> Sampling:
    chat = isinstance(body, ChatBody)
    budget = (body.max_completion_tokens or body.max_tokens or 16) if isinstance(body, ChatBody) else body.max_tokens
    return Sampling(
        max_tokens=budget,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        logprobs=bool(body.logprobs) if chat else body.logprobs is not None,
    )


def _check_sizes(call: Call, config: RouterConfig) -> None:
    sampling = call.sampling
    if not 1 <= len(call.prompt) <= config.max_tokens:
        message = f"the prompt has {len(call.prompt)} tokens; expected 1 to {config.max_tokens}"
        raise RefusedError(400, "bad_prompt", message)
    if not (min(call.prompt) >= 0 and max(call.prompt) < TOKEN_ID_LIMIT):
        raise RefusedError(400, "bad_prompt", f"prompt: token ids are expected from 0 to {TOKEN_ID_LIMIT - 1}")
    if sampling.max_tokens > config.max_tokens:
        message = f"max_tokens is {sampling.max_tokens}; expected at most {config.max_tokens}"
        raise RefusedError(400, "bad_request", message)
    if sampling.min_tokens > sampling.max_tokens:
        message = f"min_tokens ({sampling.min_tokens}) exceeds max_tokens ({sampling.max_tokens})"
        raise RefusedError(400, "bad_request", message)


def _either(header: str, headers: Mapping[str, str], key: str, value: str | None, pattern: str) -> str | None:
    given = headers.get(header)
    if given is None:
        return value
    if not re.fullmatch(pattern, given):
        raise RefusedError(400, "bad_header", f"header {header} must match {pattern}")
    if value is not None and value != given:
        raise RefusedError(400, "bad_request", f"header {header} and body key {key!r} differ")
    return given
