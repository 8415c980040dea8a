"""`pearl serve`: one process with the router, the control plane, and the cluster's Ray under it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

from pearl.api import choose_predictor, choose_solver
from pearl.errors import UsageError
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.prepare import prepare_model
from pearl.live.control.assembly import Ground, LiveFleet
from pearl.live.control.clock import ControlClock
from pearl.live.control.decider import Rulebook
from pearl.live.control.lease import LEASE_S, HeldError, HostLock, Lease, LeaseAuthority, RayLeases
from pearl.live.control.log import log
from pearl.live.control.options import ServeOptions
from pearl.live.control.plane import ControlPlane
from pearl.live.control.store import ControlStore, Fact, SetFact
from pearl.live.embedded import connected
from pearl.live.endpoint import Endpoint, ensure_token, publish_endpoint, withdraw_endpoint
from pearl.live.fleet import RayFleet
from pearl.live.protocol import EngineFactory, Tokenizer
from pearl.live.recording import STORE_FILE
from pearl.live.router.server import running_router
from pearl.live.tokenizer import load_tokenizer
from pearl.policy.load import load_policy
from pearl.tracking.forecasters import Forecaster, get_forecaster

JOURNAL_FILE = "router.db"
LEASE_OVER_S = 0.5
"""Past its end a lease is certainly over, also by the clock of its actor."""
LEASES = "pearl-leases"
"""Ray namespace of the leases; in that of a cluster every actor counts as one of its workers."""
STOP_WORKERS_S = 120.0
"""For all workers at once; what does not end by then is Ray's to kill."""

Ready = Callable[[str], object]
"""Told one line once requests are served."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Everything that one service is made of; `fleet`, `engines` and `leases` are the ways to the cluster."""

    cluster: LiveCluster
    rules: Rulebook
    fleet: LiveFleet
    engines: EngineFactory
    leases: LeaseAuthority
    token: str
    eos_token_ids: frozenset[int] = frozenset()
    forecaster: Forecaster
    shadow: bool = False
    ends_workers: bool = False
    """Whether workers end with this service however it ends: those of an embedded Ray cannot outlive it."""
    tokenizer: Tokenizer | None = None


def serve(options: ServeOptions, *, ready: Ready) -> None:
    """Serve until a signal or `pearl stop`; raises `PearlError` where it cannot, or cannot any more.

    Nothing is started before everything that was given has been found to hold.
    """
    cluster = options.load()
    policy = load_policy(options.policy, sets=options.sets)
    rules = Rulebook(policy=policy, solver=choose_solver(policy, None), predictor=choose_predictor(policy, None))
    forecaster = get_forecaster(options.forecaster)
    with ExitStack() as stack:
        _make(cluster.state_dir)
        stack.callback(HostLock(cluster.state_dir).release)
        token = ensure_token(cluster.state_dir)
        eos_token_ids = prepare_model(cluster)
        tokenizer = load_tokenizer(cluster.model.path) if options.text else None
        embedded = stack.enter_context(connected(cluster))
        fleet = RayFleet(cluster)
        service = Service(
            cluster=cluster,
            rules=rules,
            fleet=fleet,
            engines=fleet.engines,
            leases=RayLeases(cluster=cluster.name, namespace=LEASES),
            token=token,
            eos_token_ids=eos_token_ids,
            forecaster=forecaster,
            shadow=options.shadow,
            ends_workers=embedded is not None,
            tokenizer=tokenizer,
        )
        asyncio.run(run_service(service, ready=ready))


async def run_service(service: Service, *, ready: Ready) -> None:
    """As `serve`, once everything is at hand."""
    cluster = service.cluster
    async with AsyncExitStack() as stack:
        store = ControlStore(cluster.state_dir / STORE_FILE)
        stack.callback(store.close)
        lease = await _acquired(service.leases, store)
        stack.push_async_callback(lease.release)
        ground = Ground(
            cluster=cluster,
            fleet=service.fleet,
            rules=service.rules,
            store=store,
            lease=lease,
            clock=ControlClock(),
            token=service.token,
            forecaster=service.forecaster,
            shadow=service.shadow,
        )
        plane = ControlPlane(ground)
        stack.callback(_on_signals(plane.stop.ask))
        try:
            await _serve_http(service, plane, ready)
        finally:
            plane.gathering.turns.flush()
            if lease.valid and (plane.stop.workers or service.ends_workers):
                await _stop_workers(service.fleet)


async def _serve_http(service: Service, plane: ControlPlane, ready: Ready) -> None:
    state_dir = service.cluster.state_dir
    config = service.cluster.router_config(
        journal=state_dir / JOURNAL_FILE, admin_token=service.token, eos_token_ids=service.eos_token_ids
    )
    async with running_router(
        config, service.engines, tokenizer=service.tokenizer, turns=plane.gathering.turns, mount=plane.mount
    ) as (_, url):
        publish_endpoint(state_dir, Endpoint(url=url, pid=os.getpid(), started_unix_s=time.time()))
        try:
            shadow = ", shadow" if service.shadow else ""
            ready(
                f"serving at {url} (cluster {service.cluster.name}, policy {plane.policy}{shadow}, state {state_dir})"
            )
            await plane.serve()
        finally:
            withdraw_endpoint(state_dir)
            log("stopping", workers=plane.stop.workers)


async def _acquired(leases: LeaseAuthority, store: ControlStore) -> Lease:
    """The cluster's lease, in a term above all that this state folder has seen.

    That of a controller that was killed on this host is waited for: nobody renews it.
    """
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    lease = Lease(authority=leases, owner=owner, lease_s=LEASE_S)
    after_term = store.fact_as(Fact.LEASE, int) or 0
    try:
        term = await lease.acquire(after_term=after_term)
    except HeldError as e:
        if not _has_died(e.owner):
            raise
        log("lease_of_the_dead", owner=e.owner, left_s=e.left_s)
        await asyncio.sleep(min(e.left_s, LEASE_S) + LEASE_OVER_S)
        term = await lease.acquire(after_term=after_term)
    store.write(SetFact(fact=Fact.LEASE, document=str(term)))
    return lease


def _has_died(owner: str) -> bool:
    """Whether a controller of this host runs no more. Where that is a mistake, its lease is renewed, and held still."""
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Stop on SIGINT and SIGTERM; returns what undoes that. A second signal does not hurry the first."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop)

    def undo() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    return undo


async def _stop_workers(fleet: LiveFleet) -> None:
    """End every worker of this cluster; raises nothing: what is left is said in the log."""
    try:
        async with asyncio.timeout(STOP_WORKERS_S):
            living = await fleet.living()
            results = await asyncio.gather(*(handle.stop() for handle in living.values()), return_exceptions=True)
            failed = [str(result) for result in results if isinstance(result, BaseException)]
    except Exception as e:
        failed = [str(e) or type(e).__name__]
    if failed:
        log("workers_left", because=failed)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"cannot make the state folder {directory}: {e.strerror or e}") from None
