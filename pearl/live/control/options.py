"""What `pearl serve` is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pearl.live.cluster.load import load_cluster
from pearl.live.cluster.model import LiveCluster
from pearl.live.cluster.schema import is_loopback


class LogFormat(StrEnum):
    """Form of the log, on standard error."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Names and paths, as given."""

    cluster: str
    policy: str
    sets: Mapping[str, str] = field(default_factory=dict)
    """Of the policy."""
    cluster_sets: Mapping[str, str] = field(default_factory=dict)
    """Of the cluster file, by path."""
    state_dir: Path | None = None
    """None: that of the cluster file."""
    host: str | None = None
    port: int | None = None
    forecaster: str = "observed"
    shadow: bool = False
    text: bool = False
    """Whether clients may send and get text."""

    def load(self) -> LiveCluster:
        """The cluster with what was given beside its file; raises `ScenarioError` with every fault.

        A host that other machines reach is meant where it is given here.
        """
        sets = dict(self.cluster_sets)
        if self.host is not None:
            sets["ports.http.host"] = json.dumps(self.host)
            if not is_loopback(self.host):
                sets["ports.http.expose"] = "true"
        if self.port is not None:
            sets["ports.http.port"] = str(self.port)
        return load_cluster(self.cluster, sets, state_dir=self.state_dir)
