"""Text to tree: an own tokenizer and a recursive-descent parser over an allow-list, bounded in length and depth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from pearl.documents import nearest
from pearl.policy.syntax import (
    COMPARISONS,
    Binary,
    Bool,
    Call,
    Expr,
    IfElse,
    Index,
    Keyword,
    Name,
    Number,
    Unary,
)
from pearl.policy.units import PLAIN, UNITS

MAX_LENGTH = 2000
"""Characters of one expression; the longest rule of the shipped policies has 120."""
MAX_DEPTH = 40
"""Nesting of one expression; bounds the recursion of everything that walks the tree."""
MAX_TERMS = 200
"""Nodes of one expression; a sum of a hundred terms fits."""

MAX_DIGITS = 40
"""Characters of one number; no quantity here has more digits than this."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d{1,2}(?![\w.]))?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<text>'[^'\n]*'|"[^"\n]*")
      | (?P<op><=|>=|==|!=|\*\*|&&|\|\||[-+*/%()\[\],=<>!])
    """,
    re.VERBOSE,
)
_HINTS = {
    "=": "write == for equality",
    "!=": "a row cannot say 'not equal'; use <= or >=",
    "**": "powers are not linear; multiply constants instead",
    "&&": "write 'and'",
    "||": "write 'or'",
    "!": "write 'not'",
}
_WORDS = ("and", "or", "not", "if", "else", "true", "false")


class SyntaxFault(Exception):  # noqa: N818 -- carries one fault to the boundary; never leaves this package
    """A fault in an expression, at an offset of its text."""

    def __init__(self, message: str, at: int, *, expected: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.at, self.expected, self.hint = message, at, expected, hint


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse(text: str) -> Expr:
    """Parse one expression; raises SyntaxFault."""
    if len(text) > MAX_LENGTH:
        raise SyntaxFault(f"expression is longer than {MAX_LENGTH} characters", 0, hint="split it with `let`")
    return _Parser(_tokenize(text), len(text)).whole()


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SyntaxFault(f"unexpected character {text[at]!r}", at)
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(_Token(kind, match.group(kind), at))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], end: int) -> None:
        self.tokens = tokens
        self.place = 0
        self.depth = 0
        self.terms = 0
        self.end = _Token("end", "", end)

    @property
    def head(self) -> _Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else self.end

    def take(self) -> _Token:
        token = self.head
        self.place += 1
        return token

    def accept(self, *texts: str) -> _Token | None:
        return self.take() if self.head.kind in ("op", "word") and self.head.text in texts else None

    def expect(self, text: str) -> _Token:
        token = self.accept(text)
        if token is None:
            raise self.unexpected(f"{text!r}")
        return token

    def unexpected(self, expected: str) -> SyntaxFault:
        token = self.head
        found = "the expression ends too early" if token.kind == "end" else f"unexpected {token.text!r}"
        hint = _HINTS.get(token.text) if token.kind == "op" else None
        return SyntaxFault(found, token.at, expected=expected, hint=hint)

    def whole(self) -> Expr:
        expr = self.expression()
        if self.head.kind != "end":
            raise self.unexpected("an operator or the end of the expression")
        return expr

    def expression(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SyntaxFault("nested too deeply", self.head.at, hint="name a part with `let`")
        expr = self.disjunction()
        if token := self.accept("if"):
            condition = self.disjunction()
            self.expect("else")
            expr = self.counted(IfElse(condition=condition, then=expr, other=self.expression(), at=token.at))
        self.depth -= 1
        return expr

    def chain(self, operand: Callable[[], Expr], *ops: str) -> Expr:
        expr = operand()
        while token := self.accept(*ops):
            expr = self.counted(Binary(op=token.text, left=expr, right=operand(), at=token.at))
        return expr

    def counted(self, expr: Expr) -> Expr:
        self.terms += 1
        if self.terms > MAX_TERMS:
            raise SyntaxFault(f"more than {MAX_TERMS} operations", expr.at, hint="split it with `let`")
        return expr

    def disjunction(self) -> Expr:
        return self.chain(self.conjunction, "or")

    def conjunction(self) -> Expr:
        return self.chain(self.negation, "and")

    def negation(self) -> Expr:
        if token := self.accept("not"):
            return self.nested(lambda: Unary(op="not", operand=self.negation(), at=token.at))
        return self.comparison()

    def nested(self, build: Callable[[], Expr]) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SyntaxFault("nested too deeply", self.head.at)
        expr = self.counted(build())
        self.depth -= 1
        return expr

    def comparison(self) -> Expr:
        left = self.sum()
        token = self.accept(*COMPARISONS)
        if token is None:
            return left
        expr = Binary(op=token.text, left=left, right=self.sum(), at=token.at)
        if self.head.text in COMPARISONS:
            raise SyntaxFault("comparisons cannot be chained", self.head.at, hint="join two comparisons with 'and'")
        return self.counted(expr)

    def sum(self) -> Expr:
        return self.chain(self.product, "+", "-")

    def product(self) -> Expr:
        return self.chain(self.signed, "*", "/")

    def signed(self) -> Expr:
        if token := self.accept("-"):
            return self.nested(lambda: Unary(op="-", operand=self.signed(), at=token.at))
        return self.primary()

    def primary(self) -> Expr:
        token = self.head
        match token.kind:
            case "number":
                return self.number()
            case "word" if token.text in ("true", "false"):
                self.take()
                return Bool(value=token.text == "true", at=token.at)
            case "word" if token.text not in _WORDS:
                return self.named()
            case "op" if token.text == "(":
                self.take()
                inner = self.expression()
                self.expect(")")
                return inner
            case _:
                raise self.unexpected("a number, a name or '('")

    def number(self) -> Expr:
        token = self.take()
        if len(token.text) > MAX_DIGITS:
            raise SyntaxFault("number is too long", token.at, expected=f"at most {MAX_DIGITS} characters")
        value = Fraction(token.text.replace("_", ""))
        if self.accept("%"):
            return self.counted(Number(value=value / 100, unit=PLAIN, text=f"{token.text}%", at=token.at))
        if self.head.kind == "word" and self.head.text not in _WORDS:
            word = self.take()
            unit = UNITS.get(word.text)
            if unit is None:
                hint = nearest(word.text, UNITS) or "a product is written with *"
                raise SyntaxFault(f"unknown unit {word.text!r}", word.at, hint=hint)
            text = f"{token.text} {word.text}"
            return self.counted(Number(value=value * unit.factor, unit=unit.unit, text=text, at=token.at))
        return self.counted(Number(value=value, unit=PLAIN, text=token.text, at=token.at))

    def named(self) -> Expr:
        token = self.take()
        if self.accept("("):
            return self.counted(self.call(token))
        if self.accept("["):
            key = self.take()
            if key.kind not in ("text", "word"):
                self.place -= 1
                raise self.unexpected("a key such as 'reserved'")
            self.expect("]")
            quoted = key.kind == "text"
            text = key.text[1:-1] if quoted else key.text
            return self.counted(Index(map=token.text, key=text, variable=not quoted, at=token.at))
        return self.counted(Name(id=token.text, at=token.at))

    def call(self, name: _Token) -> Expr:
        args: list[Expr] = []
        keywords: list[Keyword] = []
        while not self.accept(")"):
            if args or keywords:
                self.expect(",")
            if self.is_keyword():
                keywords.append(self.keyword())
            else:
                args.append(self.expression())
        return Call(function=name.text, args=tuple(args), keywords=tuple(keywords), at=name.at)

    def is_keyword(self) -> bool:
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else self.end
        return self.head.kind == "word" and after.text == "="

    def keyword(self) -> Keyword:
        name = self.take()
        self.expect("=")
        value = self.take()
        if value.kind not in ("word", "text"):
            self.place -= 1
            raise self.unexpected("a word such as decode, or quoted text")
        quoted = value.kind == "text"
        return Keyword(name=name.text, value=value.text[1:-1] if quoted else value.text, quoted=quoted, at=name.at)
