"""`kiseki push` with the Hub's own client, against a stand-in for it: what is there then, and what `datasets` reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_uploads import TOKEN, Fault, Repo, UploadHub, upload_hub
from support import FAST, environment, kiseki, light_tools, read_rows, write_dataset

pytest.importorskip("huggingface_hub")

SECRET = "ghp_" + "a1B2" * 10
KEY = "Zq7-" + "x9Wv" * 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run data/mine: 12 rollouts in 6 batches."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "mine", [{"prompt": f"Say number {n} aloud."} for n in range(12)])
    return folder


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with upload_hub() as made:
        yield made


def make_run(folder: Path, name: str, rows: list[Any], *more: str) -> Path:
    write_dataset(folder / f"{name}.jsonl", rows)
    flags = ("--batch_size=2", f"--run_name={name}", "--model=builtin/practice", *light_tools(folder), *FAST, *more)
    kiseki("batch", f"--dataset_file={name}.jsonl", *flags, cwd=folder)
    return folder / "data" / name


def hub_environment(hub: UploadHub, folder: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "hf")}


def push(hub: UploadHub, folder: Path, *flags: str, to: str = "org/mine", status: int = 0, **more: str) -> str:
    """What it says."""
    variables = hub_environment(hub, folder) | more
    done = kiseki("push", to, *flags, cwd=folder, status=status, **variables)
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def load(hub: UploadHub, folder: Path, code: str) -> Any:
    """What `datasets` gives for an expression."""
    script = f"import json, datasets\ndatasets.disable_progress_bars()\nprint(json.dumps({code}))"
    variables = environment(**hub_environment(hub, folder))
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, cwd=folder, check=True)
    return json.loads(done.stdout)


def front_matter(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_run_is_pushed_in_one_commit_and_loads(hub: UploadHub, place: Path) -> None:
    assert "12 rows" in push(hub, place, "--run=data/mine")
    repo = hub.repos["org/mine"]
    assert repo.private
    assert repo.messages == ["initial commit", "mine: dataset"]
    rows = [json.loads(line) for line in hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()]
    assert rows == read_rows(place / "data/mine/trajectories.jsonl")
    assert not (place / "data/mine/push.tmp").exists()
    pytest.importorskip("datasets")
    loaded = load(hub, place, "{name: list(split['prompt']) for name, split in datasets.load_dataset('org/mine').items()}")
    assert loaded == {"train": [row["prompt"] for row in rows]}


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
    pytest.importorskip("datasets")
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


def test_secrets_stop_a_push_and_are_never_shown(hub: UploadHub, tmp_path: Path) -> None:
    make_run(tmp_path, "leaky", [{"prompt": "Say hi."}, {"prompt": f'My token is {SECRET}, "{KEY}".'}])
    said = push(hub, tmp_path, "--run=data/leaky", status=2, THEIR_API_KEY=KEY)
    assert "trajectories.jsonl line 2" in said
    assert "GitHub token" in said
    assert SECRET not in said
    assert KEY not in said
    assert not hub.repos
    assert "secrets replaced" in push(hub, tmp_path, "--run=data/leaky", "--redact", THEIR_API_KEY=KEY)
    everything = b"".join(hub.blobs.values()).decode()
    assert SECRET not in everything
    assert KEY not in everything
    rows = [json.loads(line) for line in hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()]
    assert "[redacted: GitHub token]" in rows[1]["prompt"]
    assert rows[0] == read_rows(tmp_path / "data/leaky/trajectories.jsonl")[0]


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


def test_somebody_elses_commit_meanwhile_is_not_lost(hub: UploadHub, place: Path) -> None:
    def meddle() -> None:
        hub.committing = lambda: None
        hub.put("org/mine", "README.md", b"# By hand\n")

    hub.committing = meddle
    push(hub, place, "--run=data/mine")
    assert "# By hand" in hub.text("org/mine", "README.md")


def test_who_may_not_is_told_so_in_one_line(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    for to, words, variables in (
        ("org/mine", "HF_TOKEN", {"HF_TOKEN": ""}),
        ("org/mine", "401", {"HF_TOKEN": "hf_wrong"}),
        ("readers/mine", "403", {}),
        ("nobody/mine", "404", {}),
        ("org/mine", "HF_HUB_OFFLINE", {"HF_HUB_OFFLINE": "1"}),
    ):
        said = push(hub, place, "--run=data/mine", to=to, status=2, HF_HOME=str(tmp_path), **variables)
        assert words in said
        assert len(said.splitlines()) == 1
    assert not hub.repos
    assert "cannot reach" in push(hub, place, "--run=data/mine", status=1, HF_ENDPOINT="http://127.0.0.1:9")


def test_a_copy_of_the_run_is_the_same_run(hub: UploadHub, place: Path, tmp_path: Path) -> None:
    push(hub, place, "--run=data/mine")
    shutil.copytree(place / "data/mine", tmp_path / "moved")
    assert "nothing new" in push(hub, tmp_path, "--run=moved")
