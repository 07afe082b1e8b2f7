"""What chat templates do to rows: small ones that have the traps of real ones, and TRL's own where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doctor.cases import factory, messages, rendered, sharegpt

from kiseki.doctor.templates import Template, compile_template, find_template, shipped
from kiseki.errors import UsageError

ONLY_KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role == 'system' %}S: {{ m.content }}\n{% elif m.role in ('user', 'assistant', 'tool') %}"
    "{{ m.role }}: {{ m.content }} {{ m.tool_calls | tojson if m.tool_calls }}{{ m.reasoning_content }}\n{% endif %}{% endfor %}"
    "{{ tools | tojson }}"
)
WRAPS = (
    "{% for m in messages %}{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
ITEMS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
STRIPS = (
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {% if loop.index0 > ns.last %}{{ m.reasoning_content }}{% endif %}{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}{{ tools | tojson }}"
)


def later(row: dict[str, Any]) -> dict[str, Any]:
    """With a user turn before the last answer."""
    row["messages"].insert(4, {"role": "user", "content": "[SUMMARY]"})
    return row


@pytest.mark.parametrize("row", [messages(), messages(arguments='{"tz": "UTC"}'), sharegpt(), factory()])
def test_our_own_template_says_everything_once(row: dict[str, Any]) -> None:
    assert rendered("chatml", row) in ({}, {"tools not rendered": ""})


def test_roles_that_the_template_does_not_know_empty_the_row() -> None:
    assert list(rendered(ONLY_KNOWN_ROLES, sharegpt(), "trl")) == ["row emptied"]
    assert "row emptied" not in rendered(ONLY_KNOWN_ROLES, sharegpt(), "axolotl")
    assert rendered(ONLY_KNOWN_ROLES, messages(), "trl") == {}


def test_responses_inside_of_responses() -> None:
    assert rendered(WRAPS, sharegpt())["response doubled"] == "once"
    assert "response doubled" not in rendered(WRAPS, messages())


def test_what_a_template_leaves_out() -> None:
    told = rendered("{% for m in messages %}{{ m.content if m.role != 'tool' }}{% endfor %}", messages())
    assert told["reasoning stripped"] == "turns 3, 5"
    assert told["result lost"] == "turn 4"
    assert told["call lost"]
    assert "tools not rendered" in told
    assert "turn lost" not in told


def test_reasoning_before_the_last_user_turn() -> None:
    strips = "{% set ns = namespace(last=-1) %}" + STRIPS
    assert rendered(strips, messages()) == {}
    assert rendered(strips, later(messages())) == {"reasoning stripped": "turn 3"}


def test_a_template_that_raises_says_why() -> None:
    assert rendered(ITEMS, messages(arguments='{"tz": "UTC"}'))["template raises"].startswith(
        "TypeError: Can only get item pairs"
    )
    assert "template raises" not in rendered(ITEMS, messages())
    assert rendered("{{ raise_exception('roles must alternate') }}", messages())["template raises"].endswith(
        "roles must alternate"
    )


@pytest.mark.parametrize("arguments", ['{"tz": "UTC"}', '{"n": 1}'])
def test_arguments_that_are_encoded_again(arguments: str) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ m.content }}{% endfor %}"
    )
    assert rendered(template, messages(arguments=arguments))["arguments encoded again"] == "turn 3"
    assert "arguments encoded again" not in rendered(template, messages(arguments=json.loads(arguments)))


def test_text_that_comes_twice_and_an_empty_think_block_before_the_one_in_the_text() -> None:
    assert "text doubled" in rendered("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", messages())
    think = "{% for m in messages %}{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}{% endfor %}"
    assert rendered(think, sharegpt())["reasoning doubled"] == "2 times"


def test_generation_blocks_loop_controls_and_the_sandbox() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 9 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert "turn lost" not in rendered(template, messages())
    assert "SecurityError" in rendered("{{ messages.append(1) }}", messages())["template raises"]


def test_where_templates_are_found(tmp_path: Path) -> None:
    listed = [{"name": name, "template": name} for name in ("rag", "default", "tool_use")]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed, "bos_token": {"content": "<s>"}}))
    for asked in (tmp_path, tmp_path / "tokenizer_config.json"):
        found = find_template(str(asked))
        assert (found.text, found.with_tools, found.special) == ("default", "tool_use", {"bos_token": "<s>"})
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("own, with tools")
    found = find_template(str(tmp_path))
    assert (found.text, found.with_tools) == ("own", "own, with tools")
    assert find_template(str(tmp_path / "chat_template.jinja")).name == "chat_template"


def test_of_several_templates_rows_with_tools_have_their_own() -> None:
    render = compile_template(Template("two", "plain", with_tools="tools: {{ tools | length }}"))
    assert render([], None, {}) == render([], [], {}) == "plain"
    assert render([], [{}], {}) == "tools: 1"


@pytest.mark.parametrize("content", ["{}", "{", '{"chat_template": 1}', '{"chat_template": [{"name": "rag", "template": "x"}]}'])
def test_a_configuration_without_a_template(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer_config\.json"):
        find_template(str(tmp_path / "tokenizer_config.json"))
    with pytest.raises(UsageError, match="no template"):
        find_template("no-such-template")


# ---- TRL's own ----------------------------------------------------------------------------------------------------------

needs_trl = pytest.mark.skipif(not shipped(), reason="TRL, which brings chat templates, is not installed")
TEXT = '{"tz": "UTC"}'


@needs_trl
@pytest.mark.parametrize(
    ("name", "row", "kinds"),
    [
        ("qwen3", messages(), []),
        ("qwen3", messages(arguments=TEXT), []),
        ("qwen3", later(messages()), ["reasoning stripped"]),
        ("qwen3_training", later(messages()), []),
        ("qwen3", sharegpt(), ["row emptied"]),
        ("qwen2_5", sharegpt(), ["row emptied"]),
        ("qwen3_6", messages(arguments=TEXT), ["template raises"]),
        ("glm4moe", messages(arguments=TEXT), ["template raises"]),
        ("glm4moe", sharegpt(), ["row emptied"]),
        ("nemotron_3_nano", messages(), []),
        ("deepseekv3", messages(), ["template raises"]),
        ("qwen2_5", messages(), ["reasoning stripped"]),
        ("qwen2_5", messages(arguments=TEXT), ["reasoning stripped", "arguments encoded again"]),
        ("gemma3", messages(), ["template raises"]),
    ],
)
def test_templates_of_trl(name: str, row: dict[str, Any], kinds: list[str]) -> None:
    assert list(rendered(name, row, "trl")) == kinds


@needs_trl
def test_lfm2_drops_calls() -> None:
    assert "call lost" in rendered("lfm2", messages(), "trl")
