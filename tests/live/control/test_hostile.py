"""What a client may send to do harm: code, files, names, bodies that are not what they seem. All is refused whole."""

from __future__ import annotations

import asyncio
import gzip
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from pearl.live.control.store import Fact
from tests.live.control.rig import run, snapshot
from tests.live.control.test_api import TOKEN, client

POLICY = """\
apiVersion: pearl.dev/v1alpha1
kind: SchedulingPolicy
metadata: {{name: x}}
extends: [builtin/pearl]
spec: {{{spec}}}
"""


def test_a_policy_that_is_sent_loads_no_code(tmp_path: Path) -> None:
    mark, evil = tmp_path / "mark", tmp_path / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w').close()\nclass Solver: pass\n")

    async def work() -> None:
        async with client(tmp_path) as call:
            for spec in (
                f"solver: {{prefer: ['{evil}:Solver']}}",
                "solver: {prefer: [cpsat, 'antigravity:Solver']}",
                f"predictor: '{evil}:Solver'",
                "predictor: 'antigravity:Solver'",
            ):
                status, answer = await call("PUT", "/policy", {"text": POLICY.format(spec=spec), "name": "p.yaml"})
                assert (status, answer["error"]["code"]) == (400, "bad_policy"), spec
                (fault,) = answer["error"]["faults"]
                assert (fault["file"], fault["line"]) == ("p.yaml", 5)
            assert (await call("GET", "/state"))[1]["policy"] == "pearl"
            assert call.rig.store.fact(Fact.POLICY) is None

    run(work())
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_a_policy_that_is_set_decides_by_its_own_predictor(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            text = POLICY.format(spec="solver: {prefer: [enumerate]}, predictor: bubble")
            assert (await call("PUT", "/policy", {"text": text}))[0] == 200
            assert call.rig.controller.decider.rules.predictor.id == "bubble"
            await call.rig.idle()
            assert call.rig.decisions()[-1]["policy"]["name"] == "x"

    run(work())


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("a\0b", "null byte"),
        ("{root}/" + "a" * 300, "too long"),
        ("/a" * 200_000, "at most 4096"),
        ("", "at least 1"),
        ("{root}/loop", "loop"),
        ("{root}/deep", "recursion"),
        ("{root}/config-out", "link out of the weight store: config.json"),
        ("{root}/tensors-out", "link out of the weight store: model.safetensors"),
        ("{root}/v00000001", "not that version's"),
        ("{root}/v00000002", "not that version's"),
    ],
)
def test_weights_are_their_versions_own_directory_of_the_store(tmp_path: Path, directory: str, said: str) -> None:
    snapshot(tmp_path, 1)
    root, secret = tmp_path / "weights", tmp_path / "secret"
    secret.write_text("{}")
    (root / "loop").symlink_to(root / "loop")
    (root / "v00000002").symlink_to(root / "v00000001")
    for name in ("deep", "config-out", "tensors-out"):
        (root / name).mkdir()
        (root / name / "config.json").write_text("[" * 100_000 if name == "deep" else "{}")
        (root / name / "model.safetensors").write_bytes(b"")
    for file in ("config-out/config.json", "tensors-out/model.safetensors"):
        (root / file).unlink()
        (root / file).symlink_to(secret)

    async def work() -> None:
        async with client(tmp_path) as call:
            asked = {"version": 2, "directory": directory.format(root=root)}
            status, answer = await call("POST", "/weights", asked)
            assert status == 400
            assert said in answer["error"]["message"]
            assert len(answer["error"]["message"]) < 1000
            assert call.rig.executor.published == []
            assert call.rig.store.fact(Fact.WEIGHTS) is None

    run(work())


def test_a_key_that_is_given_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            for raw in (b'{"step": 1, "step": 2}', b'{"step": 1, "a": {"b": 1, "b": 1}}'):
                status, answer = await _send(call, raw)
                assert (status, answer["error"]["code"]) == (400, "bad_json")
                assert "given twice" in answer["error"]["message"]
            assert not call.rig.controller.trainer.running

    run(work())


def test_compressed_bodies_are_not_unpacked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bomb = gzip.compress(b" " * 50_000_000)

    async def work() -> None:
        async with client(tmp_path) as call:
            for raw, encoding in ((bomb, "gzip"), (b"no gzip", "gzip"), (b"{}", "br"), (b"{}", "zstd")):
                status, answer = await _send(call, raw, {"Content-Encoding": encoding})
                assert (status, answer["error"]["code"]) == (415, "bad_encoding")
            assert (await call("GET", "/state"))[0] == 200

    with caplog.at_level(logging.WARNING):
        run(work())
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /pearl/v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /pearl/v1/drain HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_broken_http_is_answered_and_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def work() -> None:
        async with client(tmp_path) as call:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(call.url.rpartition(":")[2]))
            writer.write(sent.replace(b"%b", TOKEN.encode()) + b"ZZ\r\n")
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
            writer.close()

    with caplog.at_level(logging.WARNING):
        run(work())
    assert [record.getMessage() for record in caplog.records] == []


async def _send(call: Any, raw: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    sent = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
    async with call.http.post(f"{call.url}/pearl/v1/training/begin", data=raw, headers=sent) as response:
        return response.status, await response.json()
