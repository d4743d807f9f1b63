"""The filter of a table: words that must occur, and comparisons of a column, all of which must hold."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_COMPARISON = re.compile(r"^(\w+)(>=|<=|!=|=|>|<)(.+)$")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip


def matches(words: str, fields: Mapping[str, object]) -> bool:
    """Whether every word holds. `name>5` compares a number, `name=x` a text; a leading `!` turns a word round."""
    return all(_holds(word, fields) for word in words.lower().split())


def _holds(word: str, fields: Mapping[str, object]) -> bool:
    if word.startswith("!") and len(word) > 1:
        return not _holds(word[1:], fields)
    comparison = _COMPARISON.match(word)
    if comparison is None or comparison[1] not in fields:
        return any(word in str(value).lower() for value in fields.values() if value is not None)
    name, sign, wanted = comparison.groups()
    value = fields[name]
    if isinstance(value, int | float) and re.fullmatch(r"-?\d+(\.\d*)?", wanted):
        return _OPERATORS[sign](float(value), float(wanted))
    same = str(value).lower() == wanted
    return same if sign == "=" else not same if sign == "!=" else False
