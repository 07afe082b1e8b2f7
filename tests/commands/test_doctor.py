"""`kiseki doctor` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from doctor.cases import messages, sharegpt
from support import kiseki, light_tools, write_dataset


def test_clean_data_says_what_was_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [messages(0), messages(1)])
    out = kiseki("doctor", "rows.jsonl", cwd=tmp_path).stdout
    assert "rows.jsonl: 2 rows, nothing would be lost" in out
    assert "✓" in out and "✗" not in out and "2 calls" in out


def test_problems_have_rows_effects_and_fixes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [sharegpt(number) for number in range(12)])
    out = kiseki("doctor", "rows.jsonl", "--for", "trl", cwd=tmp_path, status=3).stdout
    assert "lost: role not mapped (TRL)  rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 … (12)" in out
    assert "fix: kiseki export rows.jsonl --to trl" in out


def test_findings_for_programs(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [messages(0), {"messages": []}])
    done = kiseki("doctor", "rows.jsonl", "--json", cwd=tmp_path, status=3)
    told = json.loads(done.stdout)
    assert (told["rows"], told["loses"]) == (2, True)
    lost = [each for each in told["problems"] if each["severity"] == "lost"]
    assert [(each["kind"], each["first"]) for each in lost] == [("empty conversation", [{"file": "rows.jsonl", "row": 2}])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.jsonl",), "there is no nowhere.jsonl"),
        (("rows.jsonl", "--for=trll"), "--for trll: there is no examination for that"),
        (("rows.jsonl", "--template=nothing"), "there is no template 'nothing'"),
        (("rows.jsonl", "--template=bad.jinja"), "bad is no Jinja template"),
        (("rows.jsonl", "--tokenizer=bundled"), "give --max_tokens too"),
        (("empty.jsonl",), "there is no row in empty.jsonl"),
        (("folder",), "folder has neither"),
    ],
)
def test_unusable_input(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    write_dataset(tmp_path / "rows.jsonl", [messages()])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    (tmp_path / "folder").mkdir()
    assert words in kiseki("doctor", *arguments, cwd=tmp_path, status=2).stderr


def test_words_of_the_file_do_not_command_the_terminal(tmp_path: Path) -> None:
    row = messages()
    row["messages"][1]["role"] = "\x1b[31m[bold]evil"
    write_dataset(tmp_path / "rows.jsonl", [row])
    out = kiseki("doctor", "rows.jsonl", cwd=tmp_path, status=3).stdout
    assert "\x1b" not in out and "[bold]evil" in out


def test_a_run(tmp_path: Path) -> None:
    write_dataset(tmp_path / "prompts.jsonl", [{"prompt": "Say hello"}, {"prompt": "Say bye"}])
    flags = ("--batch_size=2", "--run_name=mine", "--model=builtin/practice", "--engine=inprocess", *light_tools(tmp_path))
    kiseki("batch", "--dataset_file=prompts.jsonl", *flags, cwd=tmp_path)
    assert "nothing would be lost" in kiseki("doctor", "data/mine", cwd=tmp_path).stdout
    out = kiseki("doctor", "data/mine", "--for", "llamafactory", cwd=tmp_path).stdout
    assert "data/mine for llamafactory: 2 rows, nothing would be lost" in out
    assert not (tmp_path / "data" / "mine" / "exports").exists()
    told = json.loads(kiseki("doctor", "data/mine", "--for", "openai", "--json", cwd=tmp_path).stdout)
    assert (told["file"], told["for"], told["rows"], told["loses"]) == ("data/mine", "openai", 2, False)


def test_findings_of_several_files_for_programs(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write_dataset(folder / "a.jsonl", [messages(0)])
    write_dataset(folder / "b.jsonl", [messages(1), {"messages": []}, {"messages": []}])
    told = json.loads(kiseki("doctor", "rows", "--json", cwd=tmp_path, status=3).stdout)
    (empty,) = (each for each in told["problems"] if each["kind"] == "empty conversation")
    assert (empty["rows"], empty["first"]) == (2, [{"file": "b.jsonl", "row": 2}, {"file": "b.jsonl", "row": 3}])
    assert told["rows"] == 4
    assert {each["check"]: each["count"] for each in told["checks"]}[
        "columns: one type each, all of them from the first row on"
    ] == 4
    assert "rows b.jsonl:2, b.jsonl:3" in kiseki("doctor", "rows", cwd=tmp_path, status=3).stdout


STRICT = (
    "{% for m in messages %}{{ m.content + m.reasoning_content | default('') }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{% for name, value in call.function.arguments | items %}{{ name }}{{ value }}{% endfor %}"
    "{% endfor %}{% endfor %}{{ tools | tojson }}"
)


def test_the_command_in_the_fix_fixes(tmp_path: Path) -> None:
    parts = messages(1)
    parts["messages"][1]["content"] = [{"type": "text", "text": "What time is it?"}]
    write_dataset(tmp_path / "rows.jsonl", [messages(0, arguments='{"tz": "UTC"}'), parts, messages(2)])
    (tmp_path / "strict.jinja").write_text(STRICT)
    out = kiseki("doctor", "rows.jsonl", "--template=strict.jinja", cwd=tmp_path, status=3).stdout
    assert "lost: template raises (template strict)  rows 1, 2\n" in out
    (command,) = set(re.findall(r"^   fix: .*(kiseki export rows\.jsonl --to trl)", out, re.MULTILINE))
    kiseki(*command.split()[1:], "--out=out", cwd=tmp_path)
    kiseki("doctor", "out", "--template=strict.jinja", cwd=tmp_path)


def test_a_template_that_has_no_end(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [messages(0), messages(1)])
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content * 10**10 }}")
    out = kiseki("doctor", "rows.jsonl", "--template=mine.jinja", "--for=trl", cwd=tmp_path, status=3).stdout
    assert "lost: template has no end (template mine)  row 1\n      it needs more than 2,048 MB of memory\n" in out
    assert "not run: the template has no end" in out
