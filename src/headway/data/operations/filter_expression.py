"""A parser that turns conditions such as ``"age >= 18 and country in ['NZ', 'CH']"`` into Arrow expressions.

It never executes text.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

import pyarrow.compute as pc

from headway.core.errors import DataError

_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPUTE: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def expression_of(condition: Any) -> pc.Expression:
    """Return an Arrow expression unchanged, or parse a string; raise DataError for anything else."""
    if isinstance(condition, pc.Expression):
        return condition
    if not isinstance(condition, str):
        raise DataError(f'expr must be a pyarrow expression or a string like "age >= 18", got {condition!r}')
    try:
        return _expression(ast.parse(condition, mode="eval").body)
    except (SyntaxError, TypeError, ValueError) as error:
        raise DataError(f"{condition!r} is not a valid condition: {error}") from error


def _expression(node: ast.expr) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _all([_expression(value) for value in values], operator.and_)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _all([_expression(value) for value in values], operator.or_)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_expression(operand)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return pc.scalar(-value)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            pairs = [_compared(a, op, b) for a, op, b in zip(sides, ops, others, strict=False)]
            return _all(pairs, operator.and_)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTE:
            return _COMPUTE[type(op)](_expression(left), _expression(right))
        case ast.Name(id=name):
            return pc.field(name)
        case ast.Constant(value=value):
            return pc.scalar(value)
    raise DataError(
        f"{ast.unparse(node)!r} is not supported in a condition: compare columns and values, or pass a function"
    )


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
    if isinstance(op, ast.In | ast.NotIn):
        found = _expression(left).isin(ast.literal_eval(right))
        return ~found if isinstance(op, ast.NotIn) else found
    if type(op) not in _COMPARE:
        raise DataError(f"the operator {type(op).__name__.lower()!r} is not supported in a condition")
    return _COMPARE[type(op)](_expression(left), _expression(right))


def _all(parts: list[Any], join: Any) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = join(result, part)
    return result
