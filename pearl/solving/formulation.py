"""A decision problem as rows: the formulation of docs/formulation.md, whose size does not grow with the workers.

The first variables of a model are y[g,r], in the order of the groups and their targets: `assignment_of` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl.core.cluster import SERVING_ROLES, Counts, Mode, Role, Zone
from pearl.core.problem import AXIS_ROLE, UNREACHABLE_MS, Assignment, Axis, Change, DecisionProblem, Linear, Rule
from pearl.solving.check import check_problem
from pearl.solving.ir import Model, Point
from pearl.solving.rows import Affine, ModelBuilder, constant, total
from pearl.solving.rungs import Ladder, add_ladder, add_pairs
from pearl.solving.scope import AXIS_MODE, MODE_ROLES, Scope, Window, bounds_in_mode, lower_bound_ms, narrowed, scope_of
from pearl.solving.tiers import changes_of, priced_tiers, thresholds_ms
from pearl.solving.unary import CountRange, allowed_counts


def formulate(problem: DecisionProblem, window: Window | None = None) -> Model:
    """The problem as a model; with a window, only the assignments whose makespan lies in it.

    Raises ValueError for a problem without meaning (`check_problem`).
    """
    check_problem(problem)
    scope = scope_of(problem)
    if window is None:
        window = Window(low_ms=lower_bound_ms(problem, scope), high_ms=UNREACHABLE_MS - 1)
    return _Formulation.start(problem, narrowed(problem, scope, window), window).model()


def assignment_of(problem: DecisionProblem, point: Point) -> Assignment:
    """The assignment that a point of the problem's model stands for."""
    keys = [(group.id, role) for group in problem.groups for role in group.targets]
    return {key: number for key, number in zip(keys, point, strict=False) if number}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formulation:
    """Variables that several rows share."""

    problem: DecisionProblem
    scope: Scope
    window: Window
    builder: ModelBuilder
    workers: dict[tuple[str, Role], Affine]
    """y[g,r]."""
    counts: dict[Role, Affine]
    on: dict[Mode, Affine]
    """1 while the pool runs in the mode, else 0."""
    makespan: Affine

    @classmethod
    def start(cls, problem: DecisionProblem, scope: Scope, window: Window) -> _Formulation:
        builder = ModelBuilder()
        workers = {
            (group.id, role): builder.integer(
                f"y[{group.id},{role}]", group.size if len(group.targets) == 1 else 0, group.size
            )
            for group in problem.groups
            for role in group.targets
        }
        counts = {role: builder.integer(f"N[{role}]", 0, max(0, scope.high[role])) for role in SERVING_ROLES}
        colocated = builder.integer(
            "colocated", int(Mode.DISAGGREGATED not in problem.modes), int(Mode.COLOCATED in problem.modes)
        )
        # Where no assignment can run, the window is empty; an impossible row then says infeasible.
        makespan = builder.integer("T", min(window.low_ms, window.high_ms), window.high_ms)
        return cls(
            problem=problem,
            scope=scope,
            window=window,
            builder=builder,
            workers=workers,
            counts=counts,
            on={Mode.COLOCATED: colocated, Mode.DISAGGREGATED: constant(1) - colocated},
            makespan=makespan,
        )

    def model(self) -> Model:
        self._assign()
        for excluded in self.problem.excluded:
            self._exclude(excluded)
        rules = self._count_ranges()
        ladders = self._makespan_rows(rules)
        prices = [self._rule(rule, ladders) for rule in rules]
        prices.append(self._hurdle())
        self._borrow()
        self._tiers(total((price, 1) for price in prices), ladders)
        return self.builder.build()

    def _assign(self) -> None:
        builder = self.builder
        for group in self.problem.groups:
            placed = total((self.workers[group.id, role], 1) for role in group.targets)
            builder.equal(f"group[{group.id}]", placed - constant(group.size))
        for axis, role in AXIS_ROLE.items():
            count, on = self.counts[role], self.on[AXIS_MODE[axis]]
            taken = total((y, 1) for (_, taken_role), y in self.workers.items() if taken_role is role)
            builder.equal(f"count[{role}]", taken - count)
            builder.at_most(f"most[{role}]", count - on * max(0, self.scope.high[role]))
            builder.at_most(f"least[{role}]", on * self.scope.low[role] - count)

    def _exclude(self, excluded: Counts) -> None:
        """Some count lies below or above the excluded one: a binary for each way, one of them chosen."""
        mode = excluded.mode
        if mode is None or (excluded.colocated and (excluded.prefill or excluded.decode)):
            return
        label, ways = f"not[{excluded.label()}]", []
        for role in MODE_ROLES[mode]:
            if role is Role.INACTIVE:
                continue
            count, wanted, most = self.counts[role], excluded.of(role), max(0, self.scope.high[role])
            if wanted > most:
                return
            below, above = (self.builder.binary(f"{label}{role}{side}") for side in "<>")
            self.builder.at_most(label, count + below * (most - wanted + 1) - constant(most))
            self.builder.at_most(label, above * (wanted + 1) - count)
            ways += [(below, -1), (above, -1)]
        self.builder.at_most(label, total(ways) + self.on[mode])

    def _count_ranges(self) -> list[Rule]:
        """Turn rules that only bound one count into rows on that count; returns the others."""
        rest: list[Rule] = []
        for rule in self.problem.rules:
            bounds = allowed_counts(self.problem, self.scope, rule)
            if bounds is None:
                rest.append(rule)
            else:
                self._count_range(rule, bounds)
        return rest

    def _count_range(self, rule: Rule, bounds: CountRange) -> None:
        count, on = self.counts[AXIS_ROLE[bounds.axis]], self.on[AXIS_MODE[bounds.axis]]
        if not bounds.idle_allowed:
            self.builder.at_most(rule.name, constant(1) - on, rule=rule.name, span=rule.span)
        if bounds.counts is None:
            self.builder.at_most(rule.name, on, rule=rule.name, span=rule.span)
            return
        domain = self.scope.domain(bounds.axis)
        if bounds.counts[0] > domain[0]:
            self.builder.at_most(rule.name, on * bounds.counts[0] - count, rule=rule.name, span=rule.span)
        if bounds.counts[-1] < domain[-1]:
            self.builder.at_most(rule.name, count - on * bounds.counts[-1], rule=rule.name, span=rule.span)

    def _makespan_rows(self, rules: list[Rule]) -> dict[Axis, Ladder]:
        """Rungs of every axis that is read, and T above (or, where a rule bounds it from below, at) its tables."""
        exact_t = any(rule.expr.makespan < 0 for rule in rules)
        terms = [rule.expr for rule in rules] + [term for tier in self.problem.tiers for term in tier.terms]
        ladders: dict[Axis, Ladder] = {}
        for axis, role in AXIS_ROLE.items():
            tables = [table for term in terms for table in term.tables if table.axis is axis]
            if not tables and self.problem.tables.pairs and axis is not Axis.COLOCATED:
                continue
            ladders[axis] = add_ladder(
                self.builder,
                self.problem,
                self.scope,
                axis,
                tables=tables,
                exact=exact_t and not (self.problem.tables.pairs and axis is not Axis.COLOCATED),
                window=self.window,
                on=self.on[AXIS_MODE[axis]],
                count=self.counts[role],
            )
        colocated = self._path(ladders[Axis.COLOCATED], self.problem.tables.colocated_ms)
        paths = self._disaggregated_paths(ladders, exact=exact_t)
        for name, path in paths.items():
            self.builder.at_most(f"makespan[{name}]", path + colocated - self.makespan)
        if exact_t:
            self._makespan_at_most(colocated, list(paths.values()))
        return ladders

    def _path(self, ladder: Ladder, column: tuple[int, ...]) -> Affine:
        return total(
            (rung, max(column[n], self.window.low_ms)) for n, rung in zip(ladder.counts, ladder.rungs, strict=True)
        )

    def _disaggregated_paths(self, ladders: dict[Axis, Ladder], *, exact: bool) -> dict[str, Affine]:
        tables = self.problem.tables
        if not tables.pairs:
            return {
                "prefill": self._path(ladders[Axis.PREFILL], tables.prefill_ms),
                "decode": self._path(ladders[Axis.DECODE], tables.decode_ms),
            }
        pair = add_pairs(
            self.builder,
            self.problem,
            self.scope,
            exact=exact,
            window=self.window,
            on=self.on[Mode.DISAGGREGATED],
            counts=self.counts,
        )
        return {"pair": pair}

    def _makespan_at_most(self, colocated: Affine, paths: list[Affine]) -> None:
        """T is the larger path: at most the one that a binary names."""
        names = (
            [constant(0)] if len(paths) == 1 else [decode := self.builder.binary("bottleneck"), constant(1) - decode]
        )
        spread = self.window.high_ms - min(self.window.low_ms, self.window.high_ms)
        for path, other in zip(paths, names, strict=True):
            self.builder.at_most("makespan_at_path", self.makespan - path - colocated - other * spread)

    def _value(self, expr: Linear, ladders: dict[Axis, Ladder]) -> Affine:
        parts = [(self.workers[g, r], c) for g, r, c in expr.counts if (g, r) in self.workers]
        parts.append((self.makespan, expr.makespan))
        parts += [(ladders[table.axis].value(table.values, idle=table.values[0]), 1) for table in expr.tables]
        return total(parts) + constant(expr.constant)

    def _most(self, expr: Linear, mode: Mode) -> int:
        """Largest value of an expression while the pool runs in the mode."""
        makespan = (min(self.window.low_ms, self.window.high_ms), self.window.high_ms)
        return bounds_in_mode(self.problem, self.scope, expr, mode, makespan)[1]

    def _rule(self, rule: Rule, ladders: dict[Axis, Ladder]) -> Affine:
        """The rule's row; returns its penalty in ms."""
        value = self._value(rule.expr, ladders)
        penalty = constant(0)
        if rule.soft is not None:
            scale = rule.expr.scale
            modes = [mode for mode in self.problem.modes if rule.when in (None, mode)]
            worst = max((self._most(rule.expr, mode) for mode in modes), default=0)
            units = -(-max(0, worst) * scale.denominator // scale.numerator)
            if rule.soft.max_violation is not None:
                units = min(units, rule.soft.max_violation)
            broken = self.builder.integer(f"broken[{rule.name}]", 0, units)
            value = value * scale.denominator - broken * scale.numerator
            penalty = broken * rule.soft.penalty_ms
        if rule.when is None:
            self.builder.at_most(rule.name, value, rule=rule.name, span=rule.span)
            return penalty
        factor = rule.expr.scale.denominator if rule.soft is not None else 1
        most = factor * max(
            (self._most(rule.expr, mode) for mode in self.problem.modes if mode is not rule.when), default=0
        )
        self.builder.when(rule.name, self.on[rule.when], value, most=most, rule=rule.name, span=rule.span)
        return penalty

    def _hurdle(self) -> Affine:
        """Rows of hysteresis; returns what it charges, in ms."""
        hurdle = self.problem.hurdle
        if hurdle is None:
            return constant(0)
        thresholds = thresholds_ms(self.problem)
        happens = self._happens(frozenset(thresholds) if hurdle.gate or hurdle.charge else frozenset())
        for kind in hurdle.forbidden & happens.keys():
            self.builder.at_most(f"cooldown[{kind}]", happens[kind])
        known = {kind: ms for kind, ms in thresholds.items() if kind in happens}
        threshold = total((happens[kind], ms) for kind, ms in known.items())
        if hurdle.gate:
            for kind, own in known.items():
                late = self.makespan + threshold - constant(hurdle.stay_ms)
                most = self.window.high_ms + sum(known.values()) - own - hurdle.stay_ms
                self.builder.when(f"hysteresis[{kind}]", happens[kind], late, most=most)
        return threshold if hurdle.charge else constant(0)

    def _happens(self, wanted: frozenset[Change]) -> dict[Change, Affine]:
        """For each kind of change that matters, an expression that is 1 where it happens (and may be 1 elsewhere)."""
        hurdle = self.problem.hurdle
        wanted |= hurdle.forbidden if hurdle is not None else frozenset()
        current = self.problem.current_mode
        happens: dict[Change, Affine] = {}
        if Change.MODE in wanted and current is not None:
            happens[Change.MODE] = constant(1) - self.on[current]
        stay_roles = MODE_ROLES[current] if current is not None else SERVING_ROLES
        changes = list(changes_of(self.problem))
        ratio = [(g, r) for g, r, kind in changes if kind == "role_change" and r in stay_roles]
        resize = [(g, r) for g, r, kind in changes if kind in ("add", "remove")]
        for kind, moves in ((Change.RATIO, ratio), (Change.RESIZE, resize)):
            if kind in wanted and moves:
                happens[kind] = self.builder.binary(f"changes[{kind}]")
                most = sum({group.id: group.size for group, _ in moves}.values())
                moved = total((self.workers[group.id, role], 1) for group, role in moves)
                self.builder.at_most(f"changes[{kind}]", moved - happens[kind] * most)
        return happens

    def _borrow(self) -> None:
        terms = self.problem.borrow
        overlap = [group for group in self.problem.groups if group.zone is Zone.OVERLAP]
        borrowed = total(
            (self.workers[group.id, role], 1)
            for group in overlap
            for role in group.targets
            if role is not Role.INACTIVE
        )
        self.builder.at_most("borrow_limit", borrowed - constant(terms.max_workers))
        if terms.gate_ms is None or not borrowed.terms or terms.gate_ms >= self.window.high_ms:
            return
        borrows = self.builder.binary("borrows")
        most = min(terms.max_workers, sum(group.size for group in overlap))
        self.builder.at_most("borrows", borrowed - borrows * max(0, most))
        late = self.makespan - constant(terms.gate_ms)
        self.builder.when("borrow_gate", borrows, late, most=self.window.high_ms - terms.gate_ms)

    def _tiers(self, price: Affine, ladders: dict[Axis, Ladder]) -> None:
        for priced in priced_tiers(self.problem):
            terms = [self._value(term, ladders) for term in priced.tier.terms]
            value = terms[0] if len(terms) == 1 else self._maximum(priced.tier.name, priced.tier.terms, terms)
            self.builder.minimize(
                priced.tier.name, value + price * priced.price_weight, tolerance_ppb=priced.tolerance_ppb
            )

    def _maximum(self, name: str, exprs: tuple[Linear, ...], terms: list[Affine]) -> Affine:
        makespan = (min(self.window.low_ms, self.window.high_ms), self.window.high_ms)
        reach = [
            [bounds_in_mode(self.problem, self.scope, expr, mode, makespan) for mode in self.problem.modes]
            for expr in exprs
        ]
        low = max(min(bounds[0] for bounds in by_mode) for by_mode in reach)
        high = max(bounds[1] for by_mode in reach for bounds in by_mode)
        largest = self.builder.integer(f"max[{name}]", low, max(low, high))
        for term in terms:
            self.builder.at_most(f"max[{name}]", term - largest)
        return largest
