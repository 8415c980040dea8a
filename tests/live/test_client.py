from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pearl.errors import InputError, UsageError
from pearl.live.client import AdminClient, LateError, NotRunningError, RejectedError, UnauthorisedError
from pearl.live.control.lease import HostLock
from pearl.live.endpoint import Endpoint, ensure_token, publish_endpoint, read_endpoint, read_token, withdraw_endpoint
from tests.live.stub_controller import TOKEN, StubController, error, stub_controller


@pytest.fixture(autouse=True)
def _no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEARL_ADMIN_TOKEN", raising=False)


@pytest.fixture
def stub() -> Iterator[StubController]:
    with stub_controller() as made:
        yield made


def _client(stub: StubController) -> AdminClient:
    return AdminClient(url=stub.url, token=TOKEN)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_calls_carry_token_query_body_and_key(stub: StubController) -> None:
    stub.answers |= {
        "GET /events": (200, {"events": [{"seq": 7}]}),
        "POST /training/begin": (200, {"released": []}),
    }
    assert _client(stub).events(after=6, limit=10, wait_s=0.5) == {"events": [{"seq": 7}]}
    _client(stub).call("POST", "/training/begin", {"step": 3}, key="k1")
    events, begin = stub.calls
    assert events.query == {"after": "6", "limit": "10", "wait_s": "0.5"}
    assert (begin.method, begin.body, begin.key) == ("POST", {"step": 3}, "k1")


def test_ids_are_quoted(stub: StubController) -> None:
    with pytest.raises(RejectedError, match="no /decisions/d%2F1"):
        _client(stub).decision("d/1")


def test_nobody_listens() -> None:
    port = _free_port()
    with pytest.raises(NotRunningError, match=rf"no controller answers at http://127.0.0.1:{port}: Connection refused"):
        AdminClient(url=f"http://127.0.0.1:{port}").state()


def test_a_broken_connection_is_no_answer(stub: StubController) -> None:
    stub.answers["GET /state"] = lambda _: None
    with pytest.raises(NotRunningError, match="no controller answers"):
        _client(stub).state()


def test_a_wrong_token_says_where_the_right_one_is(stub: StubController) -> None:
    with pytest.raises(UnauthorisedError, match=r"STATE_DIR/token of the controller, or in its PEARL_ADMIN_TOKEN"):
        AdminClient(url=stub.url, token="wrong").state()


def test_a_refusal_has_status_and_code(stub: StubController) -> None:
    stub.answers["PUT /policy"] = (400, error("bad_policy", "p.yaml:3:5: no"))
    with pytest.raises(RejectedError, match=r"p\.yaml:3:5: no") as caught:
        _client(stub).set_policy(text="x", name="p.yaml")
    assert (caught.value.status, caught.value.code, caught.value.exit_code) == (400, "bad_policy", 2)


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"", b"\xff"])
def test_something_else_that_answers_is_no_controller(stub: StubController, body: bytes) -> None:
    stub.answers["GET /state"] = (200, body)
    with pytest.raises(NotRunningError, match="not as a controller does"):
        _client(stub).state()


def test_the_deadline_holds_for_silence_and_for_a_trickle() -> None:
    def trickle(server: socket.socket) -> None:
        taken, _ = server.accept()
        with taken:
            taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(40):
                time.sleep(0.05)
                try:
                    taken.sendall(b" ")
                except OSError:
                    return

    for serve in (None, trickle):
        with socket.create_server(("127.0.0.1", 0)) as server:
            if serve:
                threading.Thread(target=serve, args=(server,), daemon=True).start()
            client = AdminClient(url=f"http://127.0.0.1:{server.getsockname()[1]}")
            began_s = time.monotonic()
            with pytest.raises(LateError, match=r"no answer to GET /pearl/v1/state within 0\.3 s"):
                client.call("GET", "/state", deadline_s=0.3)
            assert time.monotonic() - began_s < 1.0


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "x"])
def test_a_url_that_cannot_be_one(url: str) -> None:
    with pytest.raises(UsageError, match="expected http://HOST:PORT"):
        AdminClient.find(url=url)


def test_a_controller_is_found_by_its_state_folder(tmp_path: Path, stub: StubController) -> None:
    stub.answers["GET /state"] = (200, {"epoch": 4})
    with pytest.raises(NotRunningError, match="no controller is known in"):
        AdminClient.find(state_dir=tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    publish_endpoint(tmp_path, Endpoint(url=stub.url, pid=1, started_unix_s=2.0))
    assert AdminClient.find(state_dir=tmp_path).state() == {"epoch": 4}
    withdraw_endpoint(tmp_path)
    withdraw_endpoint(tmp_path)
    assert read_endpoint(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"url": 1}',
        "x" * 70_000,
        "[" * 60_000,
        f'{{"url": "http://h", "pid": 1, "started_unix_s": 1{"0" * 400}}}',
    ],
)
def test_an_endpoint_file_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoint.json").write_text(text)
    with pytest.raises(InputError, match=r"endpoint\.json"):
        AdminClient.find(state_dir=tmp_path)


def test_the_token_is_made_once_and_for_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = ensure_token(tmp_path)
    path = tmp_path / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_token(tmp_path) == token
    path.chmod(0o644)
    with pytest.raises(UsageError, match=r"has mode 644: others may read the token \(chmod 600"):
        ensure_token(tmp_path)
    monkeypatch.setenv("PEARL_ADMIN_TOKEN", "given")
    assert ensure_token(tmp_path) == "given"
    monkeypatch.setenv("PEARL_ADMIN_TOKEN", " ")
    with pytest.raises(UsageError, match="PEARL_ADMIN_TOKEN is empty"):
        ensure_token(tmp_path)


@pytest.mark.parametrize("token", ["a\nb", "a b", "caf\u00e9", "a\0"])
def test_a_token_that_no_header_can_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    with pytest.raises(UsageError, match="no HTTP header can carry it"):
        AdminClient(url="http://127.0.0.1:1", token=token)
    (tmp_path / "token").write_text(f"x{token}y\n")
    (tmp_path / "token").chmod(0o600)
    for read in (ensure_token, read_token):
        with pytest.raises(UsageError, match="no HTTP header can carry it"):
            read(tmp_path)
    if "\0" not in token:
        monkeypatch.setenv("PEARL_ADMIN_TOKEN", token)
        with pytest.raises(UsageError, match="PEARL_ADMIN_TOKEN"):
            ensure_token(tmp_path)


def test_a_token_that_cannot_be_written_leaves_no_empty_file(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))  # as on a full disk: files can be made, and stay empty
    try:
        with pytest.raises(UsageError, match="cannot write"):
            ensure_token(tmp_path)
        HostLock(tmp_path).release()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [path.name for path in tmp_path.iterdir()] == ["controller.lock"]
    (tmp_path / "token").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="cannot read"):
        ensure_token(tmp_path)


@pytest.mark.parametrize(
    "url",
    ["", "x", "http://", "http://[::1", "http://[zz]", "http://h:x", "http://h:99999", "http://a b", "http://a..b",
     "http://h\n", "ftp://h", f"http://{'a' * 300}"],
)  # fmt: skip
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="expected http://HOST:PORT"):
        AdminClient(url=url)


@pytest.mark.parametrize(("status", "exit_code"), [(400, 2), (404, 2), (409, 2), (503, 5), (504, 5)])
def test_what_was_refused_and_what_could_not_be_done_in_time(stub: StubController, status: int, exit_code: int) -> None:
    stub.answers["POST /drain"] = (status, error("x", "said"))
    with pytest.raises(RejectedError) as caught:
        _client(stub).drain("a", deadline_s=1.0)
    assert caught.value.exit_code == exit_code


def test_trainers_load_nothing_but_the_standard_library() -> None:
    program = "import pearl.live.training, sys; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ["pydantic", "numpy", "ray", "vllm", "torch", "aiohttp", "yaml", "ortools"]
    done = subprocess.run(
        [sys.executable, "-c", program % heavy], capture_output=True, text=True, check=True, env=os.environ.copy()
    )
    assert done.stdout.strip() == "[]"
