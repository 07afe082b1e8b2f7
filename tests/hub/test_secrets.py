"""What is secret stays: keys of many kinds, wherever they stand, in every shape that a push has; and the token of the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hub_uploads import TOKEN, UploadHub, upload_hub
from pushing import hub_environment, load, make_run, push
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.errors import UsageError
from kiseki.hub.contents import stage_file
from kiseki.hub.scan import Guard
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.row_writers import open_writer

pytest.importorskip("huggingface_hub")

RUN = "a1B2c3D4" * 5
OWN = "Zq7-" + "x9Wv" * 6
SECRETS = {
    "OpenAI key": "sk-proj-" + RUN,
    "API key": "sk-" + RUN,
    "GitHub token": "ghp_" + RUN[:36],
    "AWS access key id": "AKIA" + "QRSTUVWX" * 2,
    "Hugging Face token": "hf_" + RUN[:34],
    "bearer token": "Bearer " + RUN,
    "Slack token": "xoxb-123456789012-" + RUN[:24],
    "Google API key": "AIza" + RUN[:35],
    "JSON web token": f"eyJ{RUN[:20]}.eyJ{RUN[:20]}.{RUN[:30]}",
    "password in a URL": "postgres://me:hunter22x@db.example/x",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{RUN}\n{RUN}\n-----END RSA PRIVATE KEY-----",
    "secret of this run": OWN,
}
HIDDEN = SECRETS | {"bearer token": RUN, "password in a URL": "hunter22x", "private key": "MIIE" + RUN}
"""What must be nowhere of each."""


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run data/leaky: a clean row, one for each secret (in the prompt, so in the call and its result too), and
    one with secrets in columns of the dataset's own."""
    folder = tmp_path_factory.mktemp("leaky")
    rows: list[Any] = [{"prompt": "Say hello aloud."}]
    rows += [{"prompt": f'Say "{secret}" aloud.'} for secret in SECRETS.values()]
    rows.append({"prompt": "Say bye aloud.", "source": {"file": f"/home/{SECRETS['OpenAI key']}.txt"}, "key": OWN})
    make_run(folder, "leaky", rows)
    return folder


def received(hub: UploadHub) -> str:
    """All that left the machine, markdown's escapes taken off."""
    bodies = b"\n".join((*hub.blobs.values(), *hub.bodies)).decode("utf-8", "replace")
    return bodies + bodies.replace("\\", "")


@pytest.mark.parametrize("flags", [(), ("--checkpoint",), ("--to=messages",), ("--to=trl",)])
def test_every_kind_stops_every_push_and_no_message_shows_it(hub: UploadHub, leaky: Path, flags: tuple[str, ...]) -> None:
    said = push(hub, leaky, "--run=data/leaky", *flags, status=2, THEIR_API_KEY=OWN)
    assert "nothing was pushed" in said
    assert "--redact" in said
    assert len(said.splitlines()) == 1
    assert not hub.repos
    assert hub.count("POST|PUT") == 0
    for kind, secret in HIDDEN.items():
        assert secret not in said, kind


def test_the_message_says_where_and_of_what_kind(hub: UploadHub, leaky: Path) -> None:
    said = push(hub, leaky, "--run=data/leaky", status=2, THEIR_API_KEY=OWN)
    for line, kind in enumerate(SECRETS, 2):
        if line <= 11:  # the others are counted
            assert f"trajectories.jsonl line {line}: {kind}" in said
    assert "and 3 more lines" in said


def test_redacted_data_has_none_of_them_in_any_shape_and_loads(leaky: Path) -> None:
    rows = read_rows(leaky / "data/leaky/trajectories.jsonl")
    with upload_hub() as hub:
        for flags in (("--checkpoint",), ("--to=trl",), ("--to=messages",), ()):
            said = push(hub, leaky, "--run=data/leaky", "--redact", *flags, THEIR_API_KEY=OWN)
            assert "secrets replaced" in said
            for kind, secret in HIDDEN.items():
                assert secret not in received(hub), (kind, flags)
            if "--to=trl" in flags:
                code = "[row['messages'][0]['content'] for row in datasets.load_dataset('org/mine', split='train')]"
                prompts = load(hub, leaky, code)
                assert prompts[0] == "Say hello aloud."
                assert "[redacted: GitHub token]" in prompts[3]
                assert "in parquet" not in said
        pushed = [json.loads(line) for line in hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()]
        assert pushed[0] == rows[0]
        assert [row["prompt_index"] for row in pushed] == [row["prompt_index"] for row in rows]
        for row, kind in zip(pushed[1:-1], SECRETS, strict=True):
            assert f"[redacted: {kind}]" in row["prompt"]
        assert "nothing new" in push(hub, leaky, "--run=data/leaky", "--redact", THEIR_API_KEY=OWN)


def test_what_the_card_says_of_the_run_is_checked_before_it_is_escaped(hub: UploadHub, tmp_path: Path) -> None:
    """In the card, all the underscores of a name have a backslash before them. A run's name is in the commit's, too."""
    name, distribution = f"run={SECRETS['GitHub token']}", f"of={SECRETS['Slack token']}"
    (tmp_path / f"{distribution}.yaml").write_text("mine: 100\n")
    make_run(tmp_path, name, [{"prompt": "Say hi aloud."}], f"--distribution={distribution}.yaml")
    said = push(hub, tmp_path, f"--run=data/{name}", status=2)
    assert "settings and names: GitHub token, Slack token" in said
    assert not hub.repos
    push(hub, tmp_path, f"--run=data/{name}", "--redact")
    for kind in ("GitHub token", "Slack token"):
        assert HIDDEN[kind] not in received(hub)
    assert all(HIDDEN["GitHub token"] not in each for each in hub.repos["org/mine"].messages)


@pytest.mark.parametrize("flags", [(), ("--redact",)])
def test_a_name_of_a_file_is_not_sent_with_a_secret_in_it(hub: UploadHub, leaky: Path, flags: tuple[str, ...]) -> None:
    split = f"--split={SECRETS['GitHub token']}=0.5,val=0.5"
    said = push(hub, leaky, "--run=data/leaky", "--to=messages", split, *flags, status=2)
    assert "GitHub token" in said
    assert HIDDEN["GitHub token"] not in said + received(hub)
    assert not hub.repos


def test_the_token_is_in_no_file_of_a_run_and_in_nothing_of_its_dataset(hub: UploadHub, tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "Say hi aloud."}])
    flags = ("--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--model=builtin/practice", "--push_to=org/r")
    done = kiseki("batch", *flags, *FAST, *light_tools(tmp_path), cwd=tmp_path, status=0, **hub_environment(hub, tmp_path))
    assert "pushed: 1 rows" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert TOKEN not in received(hub)
    for path in (tmp_path / "data/r").rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst"])
def test_packed_files_are_unpacked_to_be_checked(tmp_path: Path, name: str) -> None:
    writer = open_writer(tmp_path / name, tmp_path / name)
    for secret in ("none", SECRETS["GitHub token"]):
        writer.write(json.dumps({"text": secret}).encode())
    writer.close()
    guard = Guard((), replaces=False)
    stage_file(tmp_path, tmp_path / name, guard, f"data/{name}")
    with pytest.raises(UsageError, match=f"{name} line 2: GitHub token"):
        guard.check()
    (tmp_path / "cleaned").mkdir()
    staged = stage_file(tmp_path / "cleaned", tmp_path / name, Guard((), replaces=True), f"data/{name}")
    lines = [json.loads(line) for _, line in read_lines(staged.path)]
    assert lines == [{"text": "none"}, {"text": "[redacted: GitHub token]"}]
