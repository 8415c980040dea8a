"""Answers in OpenAI's form, with token ids and the weight version of every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from pearl.live.protocol import Tokenizer
from pearl.live.router.call import Kind, RefusedError
from pearl.live.router.ticket import Ticket

INCOMPLETE = "�"
"""How a tokenizer shows a character whose last bytes are still to come."""


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(data) + b"\n\n"


def error_body(error: RefusedError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "code": error.code}}


def refused(ticket: Ticket, *, retry_after_s: int) -> RefusedError | None:
    """Why the ticket has no answer; None where it is complete."""
    if ticket.ending is None:
        message = "the router stops; the request goes on after its restart: ask again with the same X-Request-Id"
        return RefusedError(503, "restarting", message, retry_after_s=retry_after_s)
    if ticket.ending.finish is None:
        return RefusedError(ticket.ending.status, ticket.ending.code, ticket.ending.message)
    return None


def whole_answer(ticket: Ticket, *, model: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The answer to a call that is complete; the same whenever it is asked for."""
    text = tokenizer.decode(ticket.generation.token_ids) if tokenizer else ""
    choice = _choice(ticket, 0, len(ticket.generation.token_ids))
    choice |= {"message": {"role": "assistant", "content": text}} if _is_chat(ticket) else {"text": text}
    return _envelope(ticket, model=model, chunk=False) | {"choices": [choice], "usage": usage(ticket)}


def usage(ticket: Ticket) -> dict[str, int]:
    """Tokens of the request."""
    prompt, output = len(ticket.call.prompt), len(ticket.generation.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@dataclass(slots=True, kw_only=True)
class AnswerStream:
    """Turns what a ticket shows into stream events, each token once and in order."""

    ticket: Ticket
    model: str
    tokenizer: Tokenizer | None
    usage_at_end: bool
    """Whether `stream_options.include_usage` was asked for."""
    retry_after_s: int
    ended: bool = False
    """Whether what `next` gave last ends the stream."""
    _sent: int = 0
    _sent_text: int = 0

    async def next(self) -> bytes:
        """Wait for something to send: all that is shown and was not sent yet, and the stream's end once that is known.

        An answer that cannot be completed ends with an error event, and without `[DONE]`.
        """
        await self.ticket.more(self._sent)
        self.ended = self.ticket.over
        if not self.ended:
            return event(self._tokens())
        if error := refused(self.ticket, retry_after_s=self.retry_after_s):
            return event(error_body(error))
        return event(self._tokens()) + (event(self._usage()) if self.usage_at_end else b"") + b"data: [DONE]\n\n"

    def _tokens(self) -> dict[str, Any]:
        ticket = self.ticket
        shown, over = ticket.published, ticket.ending is not None
        choice = _choice(ticket, self._sent, shown)
        text = self._text(shown, last=over)
        if _is_chat(ticket):
            choice["delta"] = {"content": text} | ({"role": "assistant"} if self._sent == 0 else {})
        else:
            choice["text"] = text
        self._sent = shown
        return _envelope(ticket, model=self.model, chunk=True) | {"choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        return _envelope(self.ticket, model=self.model, chunk=True) | {"choices": [], "usage": usage(self.ticket)}

    def _text(self, shown: int, *, last: bool) -> str:
        if self.tokenizer is None:
            return ""
        text = self.tokenizer.decode(self.ticket.generation.token_ids[:shown])
        if not last:
            text = text.rstrip(INCOMPLETE)
        new, self._sent_text = text[self._sent_text :], max(len(text), self._sent_text)
        return new


def _is_chat(ticket: Ticket) -> bool:
    return ticket.call.kind is Kind.CHAT


def _envelope(ticket: Ticket, *, model: str, chunk: bool) -> dict[str, Any]:
    chat = _is_chat(ticket)
    name = ("chat.completion.chunk" if chunk else "chat.completion") if chat else "text_completion"
    prefix = "chatcmpl" if chat else "cmpl"
    return {"id": f"{prefix}-{ticket.id}", "object": name, "created": int(ticket.accepted_unix_s), "model": model}


def _choice(ticket: Ticket, start: int, end: int) -> dict[str, Any]:
    generation = ticket.generation
    over = ticket.ending is not None and end == len(generation.token_ids)
    tokens = generation.token_ids[start:end]
    return {
        "index": 0,
        "finish_reason": ticket.ending.finish if over and ticket.ending else None,
        "token_ids": tokens,
        "weight_versions": generation.weight_versions[start:end],
        "logprobs": _logprobs(ticket, tokens, start, end),
    }


def _logprobs(ticket: Ticket, tokens: list[int], start: int, end: int) -> dict[str, Any] | None:
    """Tokens are named by id, as vLLM does under `return_tokens_as_token_ids`: not every token is text."""
    if not ticket.call.sampling.logprobs:
        return None
    values = ticket.generation.logprobs[start:end]
    names = [f"token_id:{token}" for token in tokens]
    if _is_chat(ticket):
        pairs = zip(names, values, strict=True)
        return {"content": [{"token": name, "logprob": value, "top_logprobs": []} for name, value in pairs]}
    return {"tokens": names, "token_logprobs": values, "top_logprobs": None, "text_offset": None}
