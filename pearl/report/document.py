"""A result as a document: every figure that a person or a program may read of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl.api import Result
from pearl.core.cluster import Counts
from pearl.core.decision import Candidate, RuleReport
from pearl.core.problem import Rule
from pearl.core.source import Span
from pearl.deciding.record import DECIMALS, forecast_reports, metrics
from pearl.deciding.standing import tier_unit
from pearl.planning import estimate_s, step_to_dict
from pearl.report import schema as doc
from pearl.solving.tiers import priced_tiers

if TYPE_CHECKING:
    from pearl.deciding.alternatives import Alternative, Block
    from pearl.deciding.diagnosis import Correction, Diagnosis, ResourceFix
    from pearl.deciding.sensitivity import Flip
    from pearl.deciding.standing import Loss, TierPair


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked of a result beside the decision itself."""

    why: Sequence[str] = ()
    alternatives: int = 0
    sensitivity: bool = False


def result_document(result: Result, asked: Asked = Asked()) -> doc.ResultDocument:
    """The document of a result; works out what was asked for."""
    return doc.ResultDocument(
        decision=_decision(result),
        predicted=_predicted(result),
        plan=doc.StepsDocument(
            from_epoch=result.plan.from_epoch,
            estimated_s=_round(estimate_s(result.plan)),
            steps=[step_to_dict(step) for step in result.plan.steps],
        ),
        rules=[_rule(rule) for rule in result.decision.rules],
        tiers=_tiers(result),
        metrics=metrics(result.verdict),
        forecasts=[doc.ForecastDocument(**report.data()) for report in forecast_reports(result.verdict.posed)],
        solver=_solver(result),
        inputs=_inputs(result),
        diagnosis=_diagnosis(result.diagnosis) if result.diagnosis else None,
        why=[_alternative(result.why(text)) for text in asked.why] if asked.why else None,
        alternatives=[_alternative(a) for a in result.alternatives(asked.alternatives)] if asked.alternatives else None,
        sensitivity=[_flip(flip) for flip in result.sensitivity()] if asked.sensitivity else None,
    )


def _round(value: float) -> float:
    return round(value, DECIMALS)


def _finite(value: float) -> float | None:
    return _round(value) if math.isfinite(value) else None


def _counts(counts: Counts) -> doc.CountsDocument:
    return doc.CountsDocument(
        prefill=counts.prefill,
        decode=counts.decode,
        colocated=counts.colocated,
        inactive=counts.inactive,
        borrowed=counts.borrowed,
    )


def _decision(result: Result) -> doc.DecisionDocument:
    decision = result.decision
    return doc.DecisionDocument(
        outcome=decision.outcome.value,
        mode=decision.mode.value if decision.mode else None,
        configuration=decision.counts.label(),
        counts=_counts(decision.counts),
        forced_by=list(decision.forced_by),
        reasons=[
            doc.ReasonDocument(code=reason.code.value, text=reason.text, data=dict(reason.data))
            for reason in decision.reasons
        ],
    )


def _candidate(candidate: Candidate) -> doc.CandidateDocument:
    return doc.CandidateDocument(
        configuration=candidate.counts.label(),
        counts=_counts(candidate.counts),
        makespan_s=_round(candidate.makespan_s),
        role_changes=candidate.role_changes,
    )


def _predicted(result: Result) -> doc.PredictedDocument:
    decision, paths = result.decision, result.paths
    margin_s = None
    if decision.chosen and decision.runner_up:
        margin_s = _round(decision.runner_up.makespan_s - decision.chosen.makespan_s)
    parts = None
    if paths:
        parts = doc.PathsDocument(
            prefill_s=_round(paths.prefill_s),
            transfer_s=_round(paths.transfer_s),
            decode_s=_round(paths.decode_s),
            environment_s=_round(paths.environment_s),
            prefix_hit_rate=_round(paths.prefix_hit_rate),
            prefill_utilisation=_round(paths.prefill_utilisation),
            decode_utilisation=_round(paths.decode_utilisation),
        )
    return doc.PredictedDocument(
        predictor=result.predictor.id,
        makespan_s=_round(decision.chosen.makespan_s) if decision.chosen else None,
        stay_s=_round(decision.stay.makespan_s) if decision.stay else None,
        runner_up=_candidate(decision.runner_up) if decision.runner_up else None,
        margin_s=margin_s,
        paths=parts,
    )


def _place(span: Span | None) -> tuple[str | None, int | None]:
    return (span.file, span.line) if span else (None, None)


def _rule(rule: RuleReport) -> doc.RuleDocument:
    file, line = _place(rule.span)
    return doc.RuleDocument(
        name=rule.name,
        file=file,
        line=line,
        text=rule.text,
        slack=_round(rule.slack),
        unit=rule.unit,
        active=rule.active,
        binding=rule.binding,
        violation=rule.violation,
    )


def _tiers(result: Result) -> list[doc.TierDocument]:
    report = result.decision.solver
    values = list(report.tier_values) if report else []
    tiers = priced_tiers(result.verdict.problem)
    padded = [*map(_round, values), *[None] * (len(tiers) - len(values))]
    return [
        doc.TierDocument(name=t.tier.name, value=value, unit=tier_unit(t.tier))
        for t, value in zip(tiers, padded, strict=True)
    ]


def _solver(result: Result) -> doc.SolverDocument:
    solution = result.verdict.solution
    return doc.SolverDocument(
        id=result.solver.id,
        library_version=result.solver.library_version(),
        status=solution.status.value,
        build_s=_round(solution.build_s),
        solve_s=_round(solution.solve_s),
    )


def _inputs(result: Result) -> doc.InputsDocument:
    return doc.InputsDocument(
        scenario=result.scenario.name,
        scenario_sha256=result.scenario.sha256,
        policy=result.policy.name,
        policy_sha256=result.policy.sha256,
        sets=dict(result.sets),
        event=result.event,
        seed=result.limits.seed,
    )


def _alternative(other: Alternative) -> doc.AlternativeDocument:
    return doc.AlternativeDocument(
        configuration=other.counts.label(),
        counts=_counts(other.counts),
        makespan_s=_finite(other.makespan_s),
        delta_s=_finite(other.delta_s),
        role_changes=other.role_changes,
        delta_changes=other.delta_changes,
        blocks=[_block(block) for block in other.blocks],
        tiers=[_tier_pair(pair) for pair in other.tiers],
        charged_s=_round(other.charged_s),
        loss=_loss(other.loss, other.lost_to) if other.loss and other.lost_to else None,
    )


def _tier_pair(pair: TierPair) -> doc.TierPairDocument:
    return doc.TierPairDocument(
        number=pair.number,
        name=pair.name,
        unit=pair.unit,
        value=_round(pair.value),
        chosen=_round(pair.against),
        tolerance=_round(pair.tolerance),
    )


def _loss(loss: Loss, lost_to: Counts) -> doc.LossDocument:
    tier = loss.tier
    return doc.LossDocument(
        number=tier.number,
        tier=tier.name,
        unit=tier.unit,
        value=_round(tier.value),
        against=_round(tier.against),
        lost_to=lost_to.label(),
        tolerated=[pair.name for pair in loss.tolerated],
        text=loss.text(),
    )


def _block(block: Block) -> doc.BlockDocument:
    file, line = _place(block.span)
    return doc.BlockDocument(
        name=block.name, text=block.text, amount=_round(block.amount), unit=block.unit, file=file, line=line
    )


def _flip(flip: Flip) -> doc.FlipDocument:
    return doc.FlipDocument(
        number=flip.number,
        error=None if flip.error is None else _round(flip.error),
        to=flip.to.label() if flip.to else None,
        regret=None if flip.regret is None else _round(flip.regret),
    )


def _diagnosis(diagnosis: Diagnosis) -> doc.DiagnosisDocument:
    return doc.DiagnosisDocument(
        conflict=[_conflict_rule(rule) for rule in diagnosis.conflict],
        structural=diagnosis.structural,
        corrections=[_correction(correction) for correction in diagnosis.corrections],
        resources=[_resource(fix) for fix in diagnosis.resources],
    )


def _conflict_rule(rule: Rule) -> doc.ConflictRuleDocument:
    file, line = _place(rule.span)
    return doc.ConflictRuleDocument(
        name=rule.name, file=file, line=line, text=rule.message or rule.text, relaxable=rule.relaxable
    )


def _correction(correction: Correction) -> doc.CorrectionDocument:
    relax = []
    for item in correction.relaxations:
        file, line = _place(item.span)
        relax.append(
            doc.RelaxationDocument(
                rule=item.rule, amount=_round(item.amount), unit=item.unit, text=item.text, file=file, line=line
            )
        )
    return doc.CorrectionDocument(
        relax=relax, configuration=correction.counts.label(), makespan_s=_round(correction.makespan_s)
    )


def _resource(fix: ResourceFix) -> doc.ResourceDocument:
    return doc.ResourceDocument(
        kind=fix.kind,
        zone=fix.zone.value if fix.zone else None,
        amount=fix.amount,
        configuration=fix.counts.label(),
        makespan_s=_round(fix.makespan_s),
    )
