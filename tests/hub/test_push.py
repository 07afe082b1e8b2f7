"""`kiseki push` with the Hub's own client, against a stand-in for it: what is there then, and what `datasets` reads."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hub_uploads import TOKEN, Fault, Repo, UploadHub
from pushing import front_matter, hub_environment, load, push, start_push
from support import FAST, environment, kiseki, light_tools, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

pytest.importorskip("huggingface_hub")

SECRET = b"ghp_" + b"a1B2" * 9


def test_a_run_is_pushed_in_one_commit(hub: UploadHub, place: Path) -> None:
    assert "12 rows" in start_push(hub, place, "--run=data/mine")
    repo = hub.repos["org/mine"]
    assert repo.private
    assert repo.messages == ["initial commit", "mine: dataset"]
    rows = [json.loads(line) for line in hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()]
    assert rows == read_rows(place / "data/mine/trajectories.jsonl")
    assert not (place / "data/mine/push.tmp").exists()


def test_what_is_there_is_not_sent_again(hub: UploadHub, place: Path) -> None:
    push(hub, place, "--run=data/mine")
    stored, commits = len(hub.stored), len(hub.repos["org/mine"].commits)
    assert "nothing new" in push(hub, place, "--run=data/mine")
    assert (len(hub.stored), len(hub.repos["org/mine"].commits)) == (stored, commits)


def test_the_users_words_stay_and_old_data_goes_with_the_new(hub: UploadHub, place: Path) -> None:
    push(hub, place, "--run=data/mine", "--checkpoint")
    assert sum(name.startswith("checkpoints/") for name in hub.repos["org/mine"].files) == 6
    card = hub.text("org/mine", "README.md")
    assert "The run goes on" in card
    edited = card.replace("license: unknown  # to fill in", "license: cc-by-4.0\nlanguage: [ja]").replace(
        "## Licence", "## 利用許諾"
    )
    hub.put("org/mine", "README.md", f"{edited}\nWrite to me.\n".encode())
    hub.put("org/mine", "NOTES.md", b"mine")
    before = len(hub.repos["org/mine"].commits)
    push(hub, place, "--run=data/mine", "--to=messages", "--split=train=0.5,val=0.5")
    repo = hub.repos["org/mine"]
    assert len(repo.commits) == before + 1
    assert sorted(repo.files) == [".gitattributes", "NOTES.md", "README.md", "data/train.jsonl", "data/val.jsonl", "kiseki.json"]
    card = hub.text("org/mine", "README.md")
    front = front_matter(card)
    assert (front["license"], front["language"]) == ("cc-by-4.0", ["ja"])
    assert "The run goes on" not in card
    assert "## 利用許諾" in card
    assert card.endswith("\nWrite to me.\n")
    counts = load(hub, place, "{name: len(split) for name, split in datasets.load_dataset('org/mine').items()}")
    assert set(counts) == {"train", "val"}
    assert sum(counts.values()) == 12


def test_repositories_that_are_not_this_runs_are_left_alone(hub: UploadHub, place: Path) -> None:
    hub.repos["org/open"] = Repo(private=False)
    assert "is public" in push(hub, place, "--run=data/mine", to="org/open", status=2)
    hub.repos["org/other"] = Repo(private=True)
    hub.put("org/other", "weights.bin", b"1")
    assert "weights.bin" in push(hub, place, "--run=data/mine", to="org/other", status=2)
    assert "is private" in push(hub, place, "--run=data/mine", "--public", to="org/other", status=2)
    hub.repos["org/another"] = Repo(private=True)
    manifest = {"run": "1.0", "run_name": "theirs", "state": "complete", "made_by": "", "files": {}}
    hub.put("org/another", "kiseki.json", json.dumps(manifest).encode())
    assert "'theirs'" in push(hub, place, "--run=data/mine", to="org/another", status=2)
    assert hub.count("commit|preupload|PUT") == 0
    assert not hub.repos["org/open"].private


def test_a_public_one_is_made_or_filled_only_when_asked(hub: UploadHub, place: Path) -> None:
    push(hub, place, "--run=data/mine", "--public")
    assert not hub.repos["org/mine"].private


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT /large"),
        Fault("POST .*preupload", status=429, headers={"Retry_After": "0"}),
        Fault("POST .*objects/batch", status=500),
        Fault("POST .*/commit/", status=503),
        Fault("POST .*/commit/", after=True),
    ],
    ids=["cut", "429", "500", "commit", "lost answer"],
)
def test_what_passes_is_tried_again(hub: UploadHub, place: Path, fault: Fault) -> None:
    hub.faults.append(fault)
    push(hub, place, "--run=data/mine")
    assert not fault.times
    assert hub.repos["org/mine"].messages == ["initial commit", "mine: dataset"]
    assert len(hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()) == 12


def test_a_broken_push_goes_on_where_it_was(hub: UploadHub, place: Path) -> None:
    hub.faults.append(Fault("PUT /large", times=9, status=403, skip=4))
    push(hub, place, "--run=data/mine", "--checkpoint", status=2)
    assert len(hub.stored) == 4
    assert not any(name.startswith("checkpoints") for name in hub.repos["org/mine"].files)
    hub.faults.clear()
    push(hub, place, "--run=data/mine", "--checkpoint")
    assert len(hub.stored) == len(set(hub.stored)) == 6


def test_a_killed_push_goes_on_where_it_was(hub: UploadHub, place: Path) -> None:
    released = threading.Event()
    hub.faults.append(Fault("PUT /large", times=9, skip=4, until=released))
    command = [sys.executable, "-m", "kiseki", "push", "org/mine", "--run=data/mine", "--checkpoint"]
    process = subprocess.Popen(command, cwd=place, env=environment(**hub_environment(hub, place)), stderr=subprocess.DEVNULL)
    while hub.count("PUT /large") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.kill()
    process.wait()
    released.set()
    assert TOKEN.encode() not in arguments
    assert (place / "data/mine/push.tmp").exists()
    assert len(hub.stored) == 4
    hub.faults.clear()
    push(hub, place, "--run=data/mine", "--checkpoint")
    assert len(hub.stored) == len(set(hub.stored)) == 6
    assert not (place / "data/mine/push.tmp").exists()


def test_checkpoints_neither_read_nor_send_batches_that_are_there(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    """What is read shows itself by the secret in it."""
    run = shutil.copytree(place / "data/mine", tmp_path / "mine")
    push(hub, tmp_path, "--run=mine", "--checkpoint")
    batch = run / "batch_0.jsonl"
    text = batch.read_bytes()
    batch.write_bytes(SECRET + text[len(SECRET) :])
    assert "nothing new" in push(hub, tmp_path, "--run=mine", "--checkpoint")
    batch.write_bytes(SECRET + text)
    assert "GitHub token" in push(hub, tmp_path, "--run=mine", "--checkpoint", status=2)
    batch.write_bytes(SECRET + text[len(SECRET) :])
    hub.put("org/mine", "checkpoints/batch_0.jsonl", b"{}\n")  # by somebody else
    assert "GitHub token" in push(hub, tmp_path, "--run=mine", "--checkpoint", status=2)
    batch.write_bytes(text)
    push(hub, tmp_path, "--run=mine", "--checkpoint")
    batch.write_bytes(SECRET + text[len(SECRET) :])
    with sqlite3.connect(run / "run.db") as db:  # as a resume with another dataset does
        db.execute("INSERT OR REPLACE INTO meta VALUES ('views_stale', '1')")
    assert "GitHub token" in push(hub, tmp_path, "--run=mine", "--checkpoint", status=2)


def test_a_checkpoint_that_was_redacted_is_not_taken_for_the_batch(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "data/mine", tmp_path / "mine")
    batch = run / "batch_0.jsonl"
    text = batch.read_bytes()
    batch.write_bytes(text.replace(b"Say number", b"ghp_" + b"a1B2" * 9 + b" number", 1))
    push(hub, tmp_path, "--run=mine", "--checkpoint", "--redact")
    size = len(hub.text("org/mine", "checkpoints/batch_0.jsonl").encode())
    batch.write_bytes(text + b" " * (size - len(text)))
    push(hub, tmp_path, "--run=mine", "--checkpoint")
    assert "redacted" not in hub.text("org/mine", "checkpoints/batch_0.jsonl")


def test_a_batch_that_goes_from_the_hub_meanwhile_is_not_sent_unread(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "data/mine", tmp_path / "mine")
    (run / "batch_5.jsonl").rename(tmp_path / "later")
    push(hub, tmp_path, "--run=mine", "--checkpoint")
    (tmp_path / "later").rename(run / "batch_5.jsonl")
    batch = run / "batch_0.jsonl"
    batch.write_bytes(SECRET + batch.read_bytes()[len(SECRET) :])

    def meddle() -> None:
        hub.committing = lambda: None
        hub.put("org/mine", "checkpoints/batch_0.jsonl", b"{}\n")

    hub.committing = meddle
    assert "meanwhile" in push(hub, tmp_path, "--run=mine", "--checkpoint", status=1)
    assert all(SECRET not in body for body in hub.bodies)


def test_sub_agents_are_a_configuration_of_their_own(hub: UploadHub, tmp_path: Path) -> None:
    light_tools(tmp_path)
    (tmp_path / "mine.yaml").write_text("mine: 100\ndelegation: 100\n")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "whole 0"}, {"prompt": "whole 1"}])
    shout = [{"name": "shout", "arguments": {"text": "hi"}}]
    share = [{"name": "delegate_task", "arguments": {"tasks": [{"goal": "part a"}, {"goal": "part b"}]}}]
    script = [
        {"match": "^part", "turns": [{"reasoning": "r", "tool_calls": shout}, {"reasoning": "r", "content": "done"}]},
        {"match": "^whole", "turns": [{"reasoning": "r", "tool_calls": share}, {"reasoning": "r", "content": "done"}]},
    ]
    with MockServer(script=script) as server:
        flags = ("--dataset_file=p.jsonl", "--batch_size=2", "--run_name=mine", "--tools=mine.py", "--distribution=mine.yaml")
        kiseki("batch", *flags, f"--base_url={server.base_url}", "--model=mock", *FAST, cwd=tmp_path)
    push(hub, tmp_path, "--run=data/mine")
    both = "[list(datasets.load_dataset('org/mine', name, split='train')['prompt']) for name in ('default', 'children')]"
    assert load(hub, tmp_path, both) == [["whole 0", "whole 1"], ["part a", "part b"] * 2]
    card = hub.text("org/mine", "README.md")
    assert 'load_dataset("org/mine", "children", split="train")  # 4 rows' in card
    assert "Calls of sub-agents are not counted" in card


def test_somebody_elses_commit_meanwhile_is_not_lost(hub: UploadHub, place: Path) -> None:
    def meddle() -> None:
        hub.committing = lambda: None
        hub.put("org/mine", "README.md", b"# By hand\n")

    hub.committing = meddle
    push(hub, place, "--run=data/mine")
    assert "# By hand" in hub.text("org/mine", "README.md")


def test_who_may_not_is_told_so_in_one_line(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    said = [
        ("401", push(hub, place, "--run=data/mine", status=2, HF_TOKEN="hf_wrong")),
        ("403", push(hub, place, "--run=data/mine", to="readers/mine", status=2)),
        ("404", push(hub, place, "--run=data/mine", to="nobody/mine", status=2)),
        # what the library reads when it is imported
        ("HF_TOKEN", start_push(hub, place, "--run=data/mine", status=2, HF_TOKEN="", HF_HOME=str(tmp_path))),
        ("HF_HUB_OFFLINE", start_push(hub, place, "--run=data/mine", status=2, HF_HUB_OFFLINE="1")),
        ("cannot reach", start_push(hub, place, "--run=data/mine", status=1, HF_ENDPOINT="http://127.0.0.1:9")),
    ]
    for words, line in said:
        assert words in line
        assert len(line.splitlines()) == 1
    assert not hub.repos


def test_a_copy_of_the_run_is_the_same_run(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    push(hub, place, "--run=data/mine")
    shutil.copytree(place / "data/mine", tmp_path / "moved")
    assert "nothing new" in push(hub, tmp_path, "--run=moved")
