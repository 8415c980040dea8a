"""A slow simulator, written apart from pearl.sim: one decode step at a time, plain lists, no closed forms.

It states the engine's rules as literally as possible; the fast simulator must agree with it to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Seq:
    index: int
    turns: tuple
    turn: int = -1
    context: int = 0
    left: int = 0
    kv: int = 0
    reserved: int = 0
    home: object = None
    decoder: object = None
    source: object = None
    finish_s: float = 0.0
    again: bool = False


@dataclass(eq=False)
class Eng:
    role: str
    capacity: int
    waiting: list = field(default_factory=list)
    prefilling: list = field(default_factory=list)
    running: list = field(default_factory=list)
    pulling: list = field(default_factory=list)
    held: list = field(default_factory=list)
    idle: list = field(default_factory=list)
    ends_s: float | None = None
    chunks: list = field(default_factory=list)
    batch: list = field(default_factory=list)
    link_s: float = 0.0
    load: int = 0

    def pinned(self) -> int:
        return sum(s.reserved for s in self.prefilling + self.running + self.pulling) + sum(k for _, k in self.held)

    def trim(self) -> None:
        while self.pinned() + sum(e[1] for e in self.idle) > self.capacity:
            self.idle[0][1] -= 1
            if self.idle[0][1] == 0:
                del self.idle[0]

    def park(self, seq: Seq, tokens: int) -> None:
        self.idle.append([seq.index, tokens])

    def claim(self, seq: Seq) -> int:
        held = sum(e[1] for e in self.idle if e[0] == seq.index)
        self.idle = [e for e in self.idle if e[0] != seq.index]
        return min(held, seq.context - 1)


class Stepwise:
    def __init__(self, batch, profile, *, colocated=0, prefill=0, decode=0) -> None:
        self.profile = profile
        self.now = 0.0
        roles = ["colocated"] * colocated + ["prefill"] * prefill + ["decode"] * decode
        sizes = {"decode": profile.kv_decode_tokens}
        self.engines = [Eng(role=r, capacity=sizes.get(r, profile.kv_colocated_tokens)) for r in roles]
        self.arrivals: list = []  # (time, what to do)
        self.preemptions = self.hits = self.decode_steps = 0
        self.seqs = [Seq(index=i, turns=t) for i, t in enumerate(batch)]

    def run(self):
        for seq in self.seqs:
            self.begin(seq)
        self.start_idle()
        while self.arrivals or any(e.ends_s is not None for e in self.engines):
            ends = [e.ends_s for e in self.engines if e.ends_s is not None]
            self.now = min(ends + [t for t, _ in self.arrivals])
            due = [a for a in self.arrivals if a[0] <= self.now]
            self.arrivals = [a for a in self.arrivals if a[0] > self.now]
            for _, act in due:
                act()
            for engine in self.engines:
                if engine.ends_s is not None and engine.ends_s <= self.now:
                    self.end_step(engine)
            self.start_idle()
        return self

    def start_idle(self) -> None:
        for engine in self.engines:
            if engine.ends_s is None:
                self.start_step(engine)

    def begin(self, seq: Seq) -> None:
        seq.turn += 1
        seq.context += seq.turns[seq.turn].new_prompt_tokens
        seq.left = seq.turns[seq.turn].output_tokens
        seq.home = seq.home or self.least("colocated", "prefill")
        seq.source = None
        seq.again = False
        seq.home.waiting.append(seq)

    def least(self, *roles):
        engine = min((e for e in self.engines if e.role in roles), key=lambda e: e.load)
        engine.load += 1
        return engine

    def start_step(self, e: Eng) -> None:
        p = self.profile
        e.running += [s for s in e.pulling if s.source is None]
        e.pulling = [s for s in e.pulling if s.source is not None]
        while e.running and e.capacity - e.pinned() < len(e.running):
            self.preempt(e)
        budget = p.chunk_tokens - len(e.running)
        e.chunks = []
        for seq in e.prefilling:
            self.chunk(e, seq, budget - sum(n for _, n in e.chunks))
        while e.waiting and budget - sum(n for _, n in e.chunks) > 0 and self.fits(e, e.waiting[0]):
            seq = e.waiting.pop(0)
            hit = e.claim(seq)
            if seq.source is not None:
                self.pull(e, seq, hit)
                continue
            seq.kv, seq.reserved = hit, seq.context
            self.hits += 0 if seq.again else hit
            e.prefilling.append(seq)
            e.trim()
            self.chunk(e, seq, budget - sum(n for _, n in e.chunks))
        e.batch = list(e.running)
        decode_s = p.decode.seconds(len(e.batch), sum(s.kv + 1 for s in e.batch)) if e.batch else 0.0
        prefill_s = sum(p.prefill.seconds(n, s.kv) for s, n in e.chunks)
        prefill_s -= max(0, len(e.chunks) - 1) * p.prefill.p0_s
        factor = p.mixed_step_factor if e.batch and e.chunks else 1.0
        e.ends_s = self.now + factor * (decode_s + prefill_s) if e.batch or e.chunks else None

    def chunk(self, e: Eng, seq: Seq, budget: int) -> None:
        if budget > 0:
            e.chunks.append((seq, min(budget, seq.context - seq.kv)))

    def fits(self, e: Eng, seq: Seq) -> bool:
        if len(e.running) + len(e.prefilling) + len(e.pulling) >= self.profile.max_sequences:
            return False
        need = seq.context - (1 if seq.source else 0)
        spare = 0 if e.pinned() == 0 else 0.01 * e.capacity
        return e.capacity - e.pinned() - need >= spare

    def pull(self, e: Eng, seq: Seq, hit: int) -> None:
        source, t = seq.source, self.profile.transfer
        seq.kv = seq.reserved = seq.context - 1
        e.pulling.append(seq)
        e.trim()
        source.link_s = max(self.now, source.link_s) + t.seconds(seq.kv - hit) - t.latency_s

        def arrived() -> None:
            source.held.remove((seq, seq.context - 1))
            source.park(seq, seq.context - 1)
            seq.source = None

        self.arrivals.append((source.link_s + t.latency_s, arrived))

    def preempt(self, e: Eng) -> None:
        seq = e.prefilling.pop() if e.prefilling else e.running.pop()
        e.park(seq, seq.kv)
        e.waiting.insert(0, seq)
        seq.again = True
        self.preemptions += 1

    def end_step(self, e: Eng) -> None:
        e.ends_s = None
        self.decode_steps += bool(e.batch)
        for seq in e.batch:
            seq.kv += 1
            seq.reserved += 1
        e.trim()
        ended = []
        for seq in e.batch:
            seq.context += 1
            seq.left -= 1
            if seq.left == 0:
                ended.append(seq)
        for seq in sorted(ended, key=lambda s: s.index):
            e.running.remove(seq)
            self.finish(e, seq)
        for seq, n in e.chunks:
            seq.kv += n
            if seq.kv == seq.context:
                e.prefilling.remove(seq)
                self.first_token(e, seq)

    def first_token(self, e: Eng, seq: Seq) -> None:
        seq.context += 1
        seq.left -= 1
        if seq.left == 0:
            self.finish(e, seq)
        elif e.role == "prefill":
            e.held.append((seq, seq.kv))
            seq.decoder = seq.decoder or self.least("decode")
            seq.source = e
            seq.decoder.waiting.append(seq)
        else:
            e.running.append(seq)

    def finish(self, e: Eng, seq: Seq) -> None:
        e.park(seq, seq.kv)
        if seq.turn == len(seq.turns) - 1:
            seq.finish_s = self.now
            for home in (seq.home, seq.decoder):
                if home:
                    home.load -= 1
            return
        wait_s = seq.turns[seq.turn].environment_s
        if wait_s:
            self.arrivals.append((self.now + wait_s, lambda: self.begin(seq)))
        else:
            self.begin(seq)
