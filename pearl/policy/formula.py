"""An expression together with the place where it was written."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pearl.core.source import Span
from pearl.errors import Fault
from pearl.policy.parser import SyntaxFault, parse
from pearl.policy.syntax import Bool, Expr, Number
from pearl.policy.units import PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A parsed expression, its text as written, and its place; offsets of its nodes count from `span`.

    `exact` is false where the text was folded over lines or escaped, so that offsets mean nothing in the file.
    """

    expr: Expr
    text: str
    span: Span
    exact: bool = True

    def at(self, offset: int) -> Span:
        """Place of the character at `offset` of the text."""
        if not self.exact:
            return self.span
        return Span(file=self.span.file, line=self.span.line, column=self.span.column + offset)

    def fault(self, message: str, at: int, *, expected: str | None = None, hint: str | None = None) -> Fault:
        """A fault at an offset."""
        return Fault(message=message, span=self.at(at), expected=expected, hint=hint)

    def with_expr(self, expr: Expr) -> Formula:
        """A part of this formula."""
        return Formula(expr=expr, text=self.text, span=self.span, exact=self.exact)


def read_formula(value: Any, span: Span, line: str) -> Formula | Fault:
    """Parse a YAML scalar that starts at `span`; `line` is the file's text of that line."""
    if isinstance(value, bool):
        return Formula(expr=Bool(value=value), text=str(value).lower(), span=span)
    if isinstance(value, (int, float)):
        number = Number(value=Fraction(repr(value)), unit=PLAIN, text=repr(value))
        return Formula(expr=number, text=repr(value), span=span)
    text = str(value)
    start = span.column - 1
    quoted = line[start : start + 1] in ("'", '"')
    exact = line.startswith(text, start + quoted)
    if quoted and exact:
        span = Span(file=span.file, line=span.line, column=span.column + 1)
    formula = Formula(expr=Bool(value=False), text=text, span=span, exact=exact)
    try:
        return formula.with_expr(parse(text))
    except SyntaxFault as e:
        return formula.fault(e.message, e.at, expected=e.expected, hint=e.hint)
