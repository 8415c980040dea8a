"""Retries, limits, deadlines and errors: what a client sees of the router besides tokens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pearl.errors import UsageError
from pearl.live.router.log import JsonFormatter
from pearl.live.router.pool_wire import pool_to_json
from tests.live.router.rig import TOKEN, colocated, config, rig, run, until
from tests.live.stub_engine import Misfortune, continuation

WANTED = continuation((1, 2, 3), 12)


class Letters:
    """A tokenizer of one token per character."""

    def encode(self, text: str) -> Sequence[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        return self.encode("".join(f"{m['role']}:{m['content']};" for m in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(0x4E00 + t) for t in token_ids)


# the same id


def test_the_same_id_gives_the_same_answer_and_runs_once() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            first = await r.complete(request_id="r1", logprobs=0)
            assert first[0] == 200
            assert await r.complete(headers={"X-Request-Id": "r1"}, logprobs=0) == first
            assert len(r.engines["a"].legs) == 1

    run(main())


def test_a_retry_joins_the_running_request_streaming_or_not() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].pace_s = 0.01
            first = asyncio.create_task(r.tokens(request_id="r1"))
            await until(lambda: r.router.metrics.value("pearl_router_tokens_total") >= 3)
            body = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 12, "request_id": "r1", "stream": True}
            async with r.http.post(f"{r.url}/v1/completions", json=body) as response:
                text = await response.text()
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            assert [t for e in events for t in e["choices"][0]["token_ids"]] == WANTED == await first
            assert len(r.engines["a"].legs) == 1

    run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_another_body_under_the_same_id_is_a_conflict(ended: bool) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].pace_s = 0.0 if ended else 0.01
            first = asyncio.create_task(r.tokens(request_id="r1"))
            await until(lambda: first.done() == ended and r.router.metrics.value("pearl_router_tokens_total") > 0)
            status, answer = await r.complete(request_id="r1", max_tokens=13)
            assert (status, answer["error"]["code"]) == (409, "request_id_conflict")
            assert await first == WANTED

    run(main())


def test_many_retries_at_once_are_one_request() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            found = await asyncio.gather(*(r.tokens(request_id="r1") for _ in range(20)))
            assert found == [WANTED] * 20
            assert len(r.engines["a"].legs) == 1
            assert r.router.metrics.value("pearl_router_requests_attached_total") == 19

    run(main())


# clients that go away


def test_a_request_of_a_chosen_id_goes_on_when_its_client_leaves() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].pace_s = 0.01
            first = asyncio.create_task(r.tokens(request_id="r1"))
            await until(lambda: r.router.metrics.value("pearl_router_tokens_total") >= 2)
            first.cancel()
            await until(lambda: r.router.open_requests == 0)
            assert await r.tokens(request_id="r1") == WANTED
            assert len(r.engines["a"].legs) == 1

    run(main())


def test_a_request_that_nobody_can_ask_for_again_ends_with_its_client() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            r.engines["a"].script.append((2, Misfortune.HANGS))
            first = asyncio.create_task(r.tokens())
            await until(lambda: r.engines["a"].running == 1)
            first.cancel()
            await until(lambda: r.router.open_requests == 0 and r.engines["a"].running == 0)
            assert r.router.metrics.value("pearl_router_requests_ended_total", outcome="cancelled") == 1

    run(main())


# limits


def test_past_the_queue_calls_are_refused_with_a_time_to_return() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), slots_per_worker=2, max_queued=3, retry_after_s=7) as r:
            r.engines["a"].pace_s = 0.01
            tasks = [asyncio.create_task(r.tokens()) for _ in range(5)]
            await until(lambda: r.router.open_requests == 5)
            data = {"model": "stub", "prompt": [1], "max_tokens": 1}
            async with r.http.post(f"{r.url}/v1/completions", json=data) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "7")
                assert (await response.json())["error"]["code"] == "too_many_requests"
            assert await asyncio.gather(*tasks) == [WANTED] * 5
            assert await r.tokens() == WANTED

    run(main())


def test_slots_bound_what_a_worker_runs() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), slots_per_worker=2) as r:
            r.engines["a"].pace_s = 0.001
            most = 0
            tasks = [asyncio.create_task(r.tokens()) for _ in range(9)]
            while not all(task.done() for task in tasks):
                most = max(most, r.engines["a"].running)
                await asyncio.sleep(0)
            assert most == 2

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_an_answer_and_the_request_can_be_asked_for_again(stream: bool) -> None:
    async def main() -> None:
        async with rig("a", "b", start=colocated("a")) as r:
            r.engines["a"].script.append((4, Misfortune.HANGS))
            data = {"model": "stub", "prompt": [1, 2, 3], "max_tokens": 12, "stream": stream, "request_id": "r1"}
            async with r.http.post(f"{r.url}/v1/completions", json=data, headers={"X-Deadline-S": "0.1"}) as response:
                assert response.status == (200 if stream else 504)
                last = (await response.text()).strip().splitlines()[-1].removeprefix("data: ")
                assert json.loads(last)["error"]["code"] == "deadline"
            r.set_pool(colocated("b", epoch=2))
            assert await r.tokens(request_id="r1") == WANTED

    run(main())


def test_a_lifetime_bounds_every_accepted_request() -> None:
    async def main() -> None:
        async with rig("a", request_lifetime_s=0.1) as r:
            status, answer = await r.complete(request_id="r1")
            assert (status, answer["error"]["code"]) == (504, "lifetime")
            assert (await r.complete(request_id="r1")) == (status, answer)
            assert r.router.open_requests == 0

    run(main())


def test_a_body_that_is_too_large_is_refused() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), max_body_bytes=1000) as r:
            status, answer = await r.complete(range(500))
            assert (status, answer["error"]["code"]) == (413, "request_entity_too_large")
            assert "1000 bytes" in answer["error"]["message"]

    run(main())


def test_a_slow_body_meets_its_deadline() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            _, writer = streams = await asyncio.open_connection("127.0.0.1", int(r.url.rsplit(":", 1)[1]))
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Deadline-S: 0.1\r\nContent-Length: 50\r\n\r\n{"
            )
            assert b"504" in await asyncio.wait_for(streams[0].readline(), 5)
            writer.close()

    run(main())


# bad calls

BAD = {
    "unknown key": ({"temprature": 1}, 400, "temprature"),
    "unknown model": ({"model": "gpt"}, 404, "'gpt' is not served"),
    "no tokens": ({"prompt": []}, 400, "prompt"),
    "text without a tokenizer": ({"prompt": "hello"}, 400, "send token ids"),
    "negative token": ({"prompt": [1, -1]}, 400, "prompt"),
    "fractional token": ({"prompt": [1.5]}, 400, "prompt"),
    "no budget": ({"max_tokens": 0}, 400, "max_tokens"),
    "huge budget": ({"max_tokens": 1 << 40}, 400, "at most"),
    "min above max": ({"min_tokens": 13}, 400, "exceeds max_tokens"),
    "text as number": ({"temperature": "1"}, 400, "temperature"),
    "two answers": ({"n": 2}, 400, "n:"),
    "a penalty that cannot be resumed": ({"presence_penalty": 0.5}, 400, "presence_penalty"),
    "an id with spaces": ({"request_id": "a b"}, 400, "request_id"),
    "top log-probabilities": ({"logprobs": 5}, 400, "logprobs"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_told_what_is_wrong(name: str) -> None:
    async def main() -> None:
        body, wanted, words = BAD[name]
        async with rig("a", start=colocated("a")) as r:
            status, answer = await r.complete(**{"prompt": [1, 2, 3], **body})
            assert status == wanted
            assert words in answer["error"]["message"]
            assert r.router.open_requests == 0

    run(main())


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b'{"model": "stub", "prompt": [1], "temperature": NaN}', b"[" * 100_000, b"\xff\xfe"]
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    async def main() -> None:
        async with rig("a") as r, r.http.post(f"{r.url}/v1/completions", data=raw) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] in ("bad_json", "bad_request")

    run(main())


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-Deadline-S": "soon"}, "X-Deadline-S"),
        ({"X-Deadline-S": "-1"}, "X-Deadline-S"),
        ({"X-Deadline-S": "nan"}, "X-Deadline-S"),
        ({"X-Request-Id": "a/b"}, "X-Request-Id"),
        ({"X-Request-Id": "other"}, "differ"),
        ({"X-Session-Id": "a b"}, "X-Session-Id"),
    ],
)
def test_a_bad_header_is_told(headers: dict[str, str], words: str) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            status, answer = await r.complete(headers=headers, request_id="mine")
            assert status == 400
            assert words in answer["error"]["message"]

    run(main())


def test_errors_of_routing_are_json_too() -> None:
    async def main() -> None:
        async with rig("a") as r:
            for method, path, status in (("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)):
                async with r.http.request(method, r.url + path) as response:
                    assert response.status == status
                    assert (await response.json())["error"]["type"] == "invalid_request_error"

    run(main())


# text


def test_chat_without_a_tokenizer_is_refused_clearly() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            data = {"model": "stub", "messages": [{"role": "user", "content": "hi"}]}
            async with r.http.post(f"{r.url}/v1/chat/completions", json=data) as response:
                assert response.status == 501
                assert "no tokenizer" in (await response.json())["error"]["message"]

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_chat_and_text_with_a_tokenizer(stream: bool) -> None:
    async def main() -> None:
        letters = Letters()
        async with rig("a", start=colocated("a"), tokenizer=letters) as r:
            messages = [{"role": "user", "content": "hi"}]
            wanted = continuation(letters.encode_chat(messages), 5)
            data = {"model": "stub", "messages": messages, "max_tokens": 5, "stream": stream, "logprobs": True}
            async with r.http.post(f"{r.url}/v1/chat/completions", json=data) as response:
                text = await response.text()
            if stream:
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                choices = [event["choices"][0] for event in events]
                assert "".join(c["delta"]["content"] for c in choices) == letters.decode(wanted)
                assert [t for c in choices for t in c["token_ids"]] == wanted
            else:
                choice = json.loads(text)["choices"][0]
                assert choice["message"] == {"role": "assistant", "content": letters.decode(wanted)}
                assert len(choice["logprobs"]["content"]) == 5
            status, answer = await r.complete(prompt="abc", max_tokens=4)
            assert status == 200
            assert answer["choices"][0]["text"] == letters.decode(continuation([97, 98, 99], 4))

    run(main())


# the other routes


def test_models_health_and_metrics() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            await r.tokens()
            async with r.http.get(f"{r.url}/v1/models") as response:
                assert [m["id"] for m in (await response.json())["data"]] == ["stub"]
            async with r.http.get(f"{r.url}/health") as response:
                wanted = {"status": "ok", "epoch": 1, "workers": 1, "open_requests": 0}
                assert (response.status, await response.json()) == (200, wanted)
            async with r.http.get(f"{r.url}/metrics") as response:
                lines = (await response.text()).splitlines()
            assert "pearl_router_requests_accepted_total 1" in lines
            assert 'pearl_router_requests_ended_total{outcome="length"} 1' in lines
            assert 'pearl_router_request_seconds_bucket{le="+Inf"} 1' in lines
            assert all(line.startswith(("# HELP", "# TYPE", "pearl_router_")) for line in lines)

    run(main())


def test_the_admin_routes_need_the_token() -> None:
    async def main() -> None:
        async with rig("a") as r:
            for token in (None, "", "wrong", TOKEN + "x"):
                for method, path in (("GET", "/pearl/v1/pool"), ("PUT", "/pearl/v1/pool"), ("POST", "/pearl/v1/drain")):
                    assert (await r.admin(method, path, {}, token))[0] == 401
            assert (await r.put(colocated("a"))) == (200, {"epoch": 1})
            assert (await r.admin("GET", "/pearl/v1/pool")) == (200, pool_to_json(colocated("a")))
        async with rig("a", admin_token=None) as r:
            assert (await r.put(colocated("a")))[0] == 403

    run(main())


def test_the_pool_changes_as_a_whole_or_not_at_all() -> None:
    async def main() -> None:
        async with rig("a", "b") as r:
            assert (await r.put(colocated("a", epoch=5)))[0] == 200
            assert (await r.put(colocated("a", epoch=5)))[0] == 200
            status, answer = await r.put(colocated("b", epoch=4))
            assert (status, answer["error"]["code"]) == (409, "stale_epoch")
            status, answer = await r.put(colocated("b", "unknown", epoch=6))
            assert (status, answer["error"]["code"]) == (400, "bad_pool")
            assert (await r.admin("GET", "/pearl/v1/pool"))[1] == pool_to_json(colocated("a", epoch=5))
            for body in ({"worker": "x", "deadline_s": 1}, {"worker": "a"}, {"worker": "a", "deadline_s": -1}):
                assert (await r.admin("POST", "/pearl/v1/drain", body))[0] in (400, 404)

    run(main())


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    async def main() -> None:
        async with rig("a") as r:
            assert r.url.startswith("http://127.0.0.1:")

    run(main())


def test_limits_that_make_no_sense_are_told_together() -> None:
    with pytest.raises(UsageError) as caught:
        config(slots_per_worker=0, kv_lease_s=4.0, admin_token="", port=70000)
    told = str(caught.value)
    assert all(name in told for name in ("slots_per_worker", "kv_lease_s", "admin_token", "port"))


def test_a_port_that_is_taken_is_told() -> None:
    async def main() -> None:
        async with rig("a") as r:
            port = int(r.url.rsplit(":", 1)[1])
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
                async with rig("b", port=port):
                    pass

    run(main())


def test_log_lines_are_json_and_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            await r.tokens(request_id="r1")

    with caplog.at_level(logging.INFO, logger="pearl.router"):
        run(main())
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "pearl.router"]
    assert [line["event"] for line in lines if line.get("request_id") == "r1"] == ["accepted", "ended"]
    record = logging.makeLogRecord({"msg": "x", "fields": {"request_id": 'a"}\n{"event": "forged'}})
    assert "\n" not in JsonFormatter().format(record)


def test_a_fault_of_the_router_is_in_its_log_with_the_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    async def main() -> None:
        async with rig("a", start=colocated("a")) as r:
            monkeypatch.setattr(r.router._dispatcher, "acquire", broken)
            assert (await r.complete())[0] == 500
            monkeypatch.setattr(r.router, "submit", broken)
            assert (await r.complete())[0] == 500

    run(main())
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "pearl.router"]
    told = [line for line in lines if line["event"] == "internal_error"]
    assert len(told) == 2
    assert all("ZeroDivisionError: on purpose" in line["exception"] for line in told)


def test_a_stopping_router_says_so_and_ends_its_streams() -> None:
    async def main() -> None:
        async with rig("a", start=colocated("a"), shutdown_grace_s=0.3) as r:
            r.engines["a"].script.append((4, Misfortune.HANGS))
            first = asyncio.create_task(r.complete(request_id="r1"))
            await until(lambda: r.engines["a"].running == 1)
            stop = asyncio.create_task(r.router.stop())
            await asyncio.sleep(0.05)
            status, answer = await r.complete()
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            status, answer = await first
            assert (status, answer["error"]["code"]) == (503, "restarting")
            await stop

    run(main())
