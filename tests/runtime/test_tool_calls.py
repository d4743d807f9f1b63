"""Tool calls: cut out of streams at every possible place, read as JSON, and never lost when they are none."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.server.chat_request import ChatMessage
from runtime.server.chat_template import ChatTemplate
from runtime.server.errors import ApiError
from runtime.server.tool_calls import ToolCutter

ANSWER = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def cut(pieces):
    cutter = ToolCutter()
    shown = "".join(cutter.push(piece) for piece in pieces)
    held, calls = cutter.finish()
    return shown + held, calls


@given(st.lists(st.integers(0, len(ANSWER + SECOND)), max_size=12))
def test_calls_are_found_wherever_the_stream_is_cut(places):
    edges = [0, *sorted(places), len(ANSWER + SECOND)]
    text, calls = cut([(ANSWER + SECOND)[a:b] for a, b in pairwise(edges)])
    assert text == "I look.\n"
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Köln", "days": 2}), ("time", {})]
    assert len({call.id for call in calls}) == 2


@given(st.lists(st.sampled_from(["<", "tool", "_call", ">", "a", "<tool_cal"]), max_size=8))
def test_text_without_a_call_passes_unchanged(pieces):
    if "<tool_call>" not in "".join(pieces):
        assert cut(pieces) == ("".join(pieces), [])


@pytest.mark.parametrize("broken", ["<tool_call>{not json}</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', "<tool_call>[]"])
def test_what_is_no_call_stays_text(broken):
    assert cut(["before ", broken]) == ("before " + broken, [])


def test_a_call_that_was_cut_off_but_is_whole_counts():
    text, calls = cut(['<tool_call>{"name": "f", "arguments": "{}"}'])
    assert text == "" and [(call.name, call.arguments) for call in calls] == [("f", "{}")]


def test_tools_and_earlier_calls_reach_the_template():
    template = ChatTemplate(
        "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} "
        "{{ c.function.arguments | tojson }}){% endfor %};{% endfor %}",
        {},
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [ChatMessage("assistant", None, tool_calls=[call]), ChatMessage("tool", "7", tool_call_id="1")]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert template.render(messages, tools) == '[f]assistant:(f {"a": 1});tool:7;'
    with pytest.raises(ApiError, match="no place for tools"):
        ChatTemplate("{{ messages[0].content }}", {}).render(messages, tools)
