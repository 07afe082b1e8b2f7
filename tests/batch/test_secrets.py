"""Keys are planted wherever a run meets any, and then everything that it leaves behind is searched for them."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from support import children, kiseki, read_rows, start_kiseki, write_dataset

from kiseki import AIAgent
from kiseki.commands import agent, batch
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes import bubblewrap
from kiseki.trajectory.record import decode_record
from kiseki.trajectory.types import Record

API_KEY = "planted/4f9a1c77e2b04d5d9a3c+models-key"
WEATHER = "planted-7Qz81LmWx03RtYv6-weather"
PLANTED = (API_KEY, WEATHER)

TOOL = """
import base64, os
from kiseki import tool
from kiseki.errors import SandboxError

@tool(toolset="mine")
def weather(city: str) -> str:
    '''The weather.

    Args:
        city: Where.
    '''
    token = os.environ["WEATHER_API_TOKEN"]
    if city == "nowhere":
        raise RuntimeError(f"401 Unauthorized: https://weather.test/?city={city}&token={token}")
    if city == "the moon":
        raise SandboxError(f"no way there for {token}")
    return base64.b64encode(f"user:{token}\\n".encode()).decode()
"""
LOOK = "env; cat /proc/*/environ; ps auxww; true"
ANCESTORS = (  # what a command can see in a sandbox that is none
    "p=$$; while [ $p -gt 1 ]; do tr '\\0' '\\n' </proc/$p/environ; tr '\\0' ' ' </proc/$p/cmdline; "
    "p=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$p/stat); done"
)


def call(name: str, **arguments: str) -> dict[str, object]:
    return {"turns": [{"reasoning": "hm", "tool_calls": [{"name": name, "arguments": arguments}]}, {"content": "Done."}]}


SCRIPT = [
    {"match": "nowhere", **call("weather", city="nowhere")},
    {"match": "the moon", **call("weather", city="the moon")},
    {"match": "somewhere", **call("weather", city="Kyoto")},
    {"match": "look", **call("terminal", command=LOOK)},
    {"match": "ancestors", **call("terminal", command=ANCESTORS)},
    {"match": "refused", "turns": [{"fault": {"kind": "auth"}}]},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOL)
    (tmp_path / "mine.yaml").write_text("terminal: 100\n")
    return tmp_path


def flags(prompts: list[str], folder: Path, *more: str) -> tuple[str, ...]:
    write_dataset(folder / "p.jsonl", [{"prompt": prompt} for prompt in prompts])
    run = ("--dataset_file=p.jsonl", "--batch_size=2", "--run_name=r", "--distribution=mine.yaml", "--tools=mine.py")
    return ("batch", *run, "--model=m", "--verbose", "--num_workers=2", "--max_attempts=1", *more)


def by_proxy(server: MockServer) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags and environment of a run whose key can only be in the environment: its host is not on this machine."""
    return ("--base_url=http://api.planted.example/v1",), {
        "OPENAI_API_KEY": API_KEY,
        "WEATHER_API_TOKEN": WEATHER,
        "http_proxy": server.root_url,
    }


def forms(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret, safe=""))
    for before in range(3):
        yield base64.b64encode(bytes(before) + secret.encode()).decode()[4:-8]


def planted_in(*texts: str) -> list[str]:
    return [form for text in texts for secret in PLANTED for form in forms(secret) if form in text]


def everything_in(folder: Path) -> list[str]:
    """Every file, and what is packed in the ledger."""
    texts = [path.read_bytes().decode("utf-8", "replace") for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(texts) >= 4
    return [*texts, *(msgspec.json.encode(record).decode() for record in records(folder))]


def records(folder: Path) -> list[Record]:
    with sqlite3.connect(folder / "run.db") as ledger:
        return [decode_record(packed) for (packed,) in ledger.execute("SELECT record FROM attempts ORDER BY id")]


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


def read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:  # that process has ended
        return ""


def test_nothing_that_a_run_leaves_or_starts_holds_a_secret(folder: Path) -> None:
    prompts = ["nowhere", "somewhere", "ancestors", "look"]
    commands: set[str] = set()
    with MockServer(script=SCRIPT, latency=0.1, record=20) as server:
        host, environment = by_proxy(server)
        process = start_kiseki(*flags(prompts, folder, *host, "--sandbox=local"), cwd=folder, **environment)
        while process.poll() is None:
            try:
                commands.update(read(f"/proc/{pid}/cmdline") for pid in descendants(process.pid))
            except OSError:
                continue
        output = process.communicate()[0]
        sent = server.stats(log=True)["log"]
    assert process.returncode == 0, output
    assert any("kiseki.batch.worker" in each for each in commands)
    assert all(each["headers"]["authorization"].endswith(API_KEY[-4:]) for each in sent), "the key was in use"
    assert not planted_in(*commands)
    assert not planted_in(output)
    assert not planted_in(*everything_in(folder / "data" / "r"))
    assert not planted_in(json.dumps([each["body"] for each in sent])), "the model is told what is kept"
    shown = "\n".join(row["conversations"][-2]["value"] for row in read_rows(folder / "data" / "r" / "trajectories.jsonl"))
    assert shown.count("[redacted: secret of this run]") >= 4
    assert "RuntimeError: 401 Unauthorized: https://weather.test/?city=nowhere&token=[redacted: secret of this run]" in shown
    found = sum(run.redacted for record in records(folder / "data" / "r") for run in record.tool_runs)
    statistics = json.loads((folder / "data" / "r" / "statistics.json").read_text())
    with sqlite3.connect(folder / "data" / "r" / "run.db") as ledger:
        (counted,) = ledger.execute("SELECT sum(redacted) FROM attempts").fetchone()
    assert found == counted == statistics["redacted"] >= 4
    assert f"redacted: {found} secrets in tool results" in output


def test_a_sandbox_has_none_to_show(folder: Path) -> None:
    if why := bubblewrap.working_program()[1]:
        pytest.skip(f"bubblewrap does not work here: {why}")
    with MockServer(script=SCRIPT) as server:
        host, environment = by_proxy(server)
        more = ("--sandbox=bubblewrap", "--redact", "false", "--concurrency=1")
        done = kiseki(*flags(["look", "nowhere"], folder, *host, *more), cwd=folder, status=0, **environment)
    look, nowhere = (record.messages[2].content for record in records(folder / "data" / "r"))
    assert "HOME=/home/user" in look
    assert not planted_in(look)
    assert WEATHER in nowhere, "results are kept as they are when told so"
    assert "redacted" not in done.stdout


@pytest.mark.parametrize(("where", "redact"), [("flag", "--redact=false"), ("environment", "--redact=true")])
def test_an_endpoint_that_repeats_the_key_in_its_error(folder: Path, where: str, redact: str) -> None:
    with MockServer(script=SCRIPT) as server:
        host, environment = by_proxy(server)
        if where == "flag":
            host, environment = (f"--base_url={server.base_url}", f"--api_key={API_KEY}"), {}
        more = (*host, redact, "--num_workers=1")
        done = kiseki(*flags(["refused"], folder, *more), cwd=folder, status=None, **environment)
        assert server.stats()["by_status"] == {"401": 1}
    assert done.returncode not in (0, 2)
    assert "401" in done.stdout + done.stderr
    assert not planted_in(done.stdout, done.stderr, *everything_in(folder / "data" / "r"))


def test_one_prompt_from_the_command_line(folder: Path) -> None:
    with MockServer(script=SCRIPT) as server:
        base = ("agent", "--model=m", f"--base_url={server.base_url}", f"--api_key={API_KEY}", "--tools=mine.py", "--verbose")
        more = ("--save_trajectories", "--save_sample", "--sandbox=local", "--enabled_toolsets=terminal,mine")
        done = kiseki(*base, "--query=ancestors", *more, cwd=folder, WEATHER_API_TOKEN=WEATHER)
    assert done.stdout.count("[redacted: secret of this run]") >= 2, "the environment, and the process's own arguments"
    saved = [path.read_text() for path in (folder / "trajectory_samples.jsonl", *folder.glob("sample_*.json"))]
    assert len(saved) == 2
    assert all("[redacted: secret of this run]" in each for each in saved)
    assert not planted_in(done.stdout, done.stderr, *saved)


@pytest.mark.parametrize("redact", [True, False])
def test_one_prompt_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch, redact: bool) -> None:
    monkeypatch.setenv("WEATHER_API_TOKEN", WEATHER)
    with MockServer(script=SCRIPT) as server:
        asker = AIAgent("m", base_url=server.base_url, tools=[folder / "mine.py"], enabled_toolsets=[], redact=redact)
        result, failed = asker.run_conversation("nowhere"), asker.run_conversation("the moon")
    assert (WEATHER in result.messages[2].content) is not redact
    assert result.record.tool_runs[0].redacted == redact
    assert failed.error == "no way there for [redacted: secret of this run]", "errors are never kept with one"


def test_a_proxy_does_not_get_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with MockServer(turns=0, record=1) as server:
        (host,), environment = by_proxy(server)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        AIAgent("m", base_url=host.partition("=")[2], enabled_toolsets=["todo"]).run_conversation("hello")
        (request,) = server.stats(log=True)["log"]
    assert "proxy-authorization" not in request["headers"]


def test_a_misspelled_flag_does_not_show_the_key(folder: Path) -> None:
    done = kiseki("batch", f"--apikey={API_KEY}", cwd=folder, status=2)
    assert done.stderr == "kiseki: unknown flag --apikey=…; did you mean --api_key?\n"


def test_the_switch_is_explained() -> None:
    for parser in (agent.build_parser(), batch.build_parser()):
        assert "(default: on; --redact=false switches it off)" in " ".join(parser.format_help().split())
        assert [parser.parse(argv).redact for argv in ([], ["--redact"], ["--redact", "false"])] == [True, True, False]
        assert parser.parse(["--redact=false", "--redact=true"]).redact is True
        with pytest.raises(UsageError, match="'maybe' is neither true nor false"):
            parser.parse(["--redact=maybe"])
