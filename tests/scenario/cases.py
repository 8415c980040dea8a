"""A small scenario as text, with parts replaced."""

from __future__ import annotations

from pearl.scenario.load import parse_scenario
from pearl.scenario.model import Scenario

TEXT = """\
apiVersion: pearl.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  engine: qwen3-8b-h200
  cluster:
    tensor_parallel: 1
    pools:
      - {zone: reserved, nodes: 1, gpus_per_node: 2, role: decode}
      - {zone: preemptible, name: spot, nodes: 2, gpus_per_node: 2, role: prefill, reclaim_probability: 5%}
      - {zone: overlap, name: train, nodes: 1, gpus_per_node: 4}
  workload:
    trajectories: 8
    turns: 4
    first_prompt_tokens: 2000
    new_prompt_tokens: {dist: lognormal, mean: 500, cv: 0.5, low: 10}
    output_tokens: {dist: exponential, mean: 200}
    environment: {dist: uniform, low: 1s, high: 3s}
    max_context_tokens: 8192
"""

ENGINE = """{name: two-way, model: m, gpu: X, tensor_parallel: %d, prefill: {p0: 1ms, p1: 10us, p2: 0s},
    decode: {c0: 5ms, c1: 10us, c2: 30ns}, kv_transfer: {latency: 1ms, bandwidth: 25 GB/s, bytes_per_token: 144 KiB},
    kv_decode_tokens: 1000, kv_colocated_tokens: 900}"""


def small(*replacements: tuple[str, str]) -> Scenario:
    """The small scenario with each `(old, new)` replaced, which must occur."""
    return parse_scenario(small_text(*replacements), file="small.yaml")


def small_text(*replacements: tuple[str, str]) -> str:
    text = TEXT
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return text
