from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.policy.parser import SyntaxFault, parse
from pearl.policy.quantities import literal
from pearl.policy.syntax import Binary, Call, Expr, IfElse, Name, Number, Unary, render
from pearl.policy.units import JOULE, PLAIN, SECOND, TOKENS_PER_SECOND, USD


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("8s", 8, SECOND),
        ("500ms", Fraction(1, 2), SECOND),
        ("10min", 600, SECOND),
        ("1 h", 3600, SECOND),
        ("25%", Fraction(1, 4), PLAIN),
        ("1.5%", Fraction(3, 200), PLAIN),
        ("14500 usd * 1 s", 14500, USD * SECOND),
        ("2 kWh", 7_200_000, JOULE),
        ("1_000 tokens/s", 1000, TOKENS_PER_SECOND),
        ("3 usd / usd", 3, PLAIN),
        ("1e-3", Fraction(1, 1000), PLAIN),
        ("-(2 + 3) * 4s", -20, SECOND),
        ("max(3s, 4s) - min(1s, 2s)", 3, SECOND),
        ("abs(-3)", 3, PLAIN),
    ],
)
def test_literals(text, value, unit):
    assert literal(parse(text)) == (value, unit)


@pytest.mark.parametrize(
    ("text", "at", "word"),
    [
        ("", 0, "ends too early"),
        ("1 +", 3, "ends too early"),
        ("3 secs", 2, "unknown unit"),
        ("a ** 2", 2, "'**'"),
        ("a = 2", 2, "'='"),
        ("a <= b <= c", 7, "chained"),
        ("a $ b", 2, "'$'"),
        ("count(role=3)", 11, "'3'"),
        ("price[3]", 6, "'3'"),
        ("(a", 2, "ends too early"),
        ("a b", 2, "'b'"),
        ("__import__('os')", 11, "'os'"),
        ("a.b", 1, "'.'"),
        ("lambda: 1", 6, "':'"),
        ("1" * 41, 0, "too long"),
        ("1e999", 1, "unknown unit"),
    ],
)
def test_syntax_faults_point_at_the_character(text, at, word):
    with pytest.raises(SyntaxFault) as caught:
        parse(text)
    assert (caught.value.at, word in f"{caught.value.message} {caught.value.expected}") == (at, True)


@pytest.mark.parametrize(
    "text", ["(" * 500 + "1" + ")" * 500, "-" * 500 + "1", "not " * 500 + "true", "1+" * 900 + "1"]
)
def test_length_and_depth_are_bounded(text):
    with pytest.raises(SyntaxFault):
        parse(text)


def test_precedence():
    expr = parse("a + b * -c <= d and not e or f")
    assert render(expr) == "a + b * -c <= d and not e or f"
    assert isinstance(expr, Binary)
    assert expr.op == "or"
    assert render(parse("(a + b) * c - (d - e)")) == "(a + b) * c - (d - e)"
    assert render(parse("x if a >= 3 else y")) == "x if a >= 3 else y"


_NAMES = st.sampled_from(["a", "b", "N_P", "T"]).map(lambda name: Name(id=name))
_NUMBERS = st.integers(0, 999).map(lambda n: Number(value=Fraction(n), unit=PLAIN, text=str(n)))


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(lambda op, a, b: Binary(op=op, left=a, right=b), st.sampled_from("+-*/"), inner, inner),
        st.builds(lambda a: Unary(op="-", operand=a), inner),
        st.builds(
            lambda f, a: Call(function=f, args=tuple(a)), st.sampled_from(["max", "min"]), st.lists(inner, max_size=3)
        ),
        st.builds(
            lambda c, a, b: IfElse(condition=Binary(op="<=", left=c, right=a), then=a, other=b), inner, inner, inner
        ),
    )


def _bare(expr: Expr) -> str:
    """The tree without places."""
    match expr:
        case Number():
            return str(expr.value)
        case Name():
            return expr.id
        case Unary():
            return f"({expr.op} {_bare(expr.operand)})"
        case Binary():
            return f"({expr.op} {_bare(expr.left)} {_bare(expr.right)})"
        case Call():
            return f"({expr.function} {' '.join(map(_bare, expr.args))})"
        case IfElse():
            return f"(if {_bare(expr.condition)} {_bare(expr.then)} {_bare(expr.other)})"
    raise AssertionError(expr)


@given(st.recursive(_NAMES | _NUMBERS, _grow, max_leaves=12))
def test_rendered_text_parses_to_the_same_tree(expr):
    assert _bare(parse(render(expr))) == _bare(expr)


@given(st.text(max_size=60))
def test_any_text_parses_or_faults_inside_it(text):
    try:
        parse(text)
    except SyntaxFault as e:
        assert 0 <= e.at <= len(text)  # noqa: PT017 -- either outcome is right
