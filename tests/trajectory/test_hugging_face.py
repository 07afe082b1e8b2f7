"""Tokenizers from the hub, its cache, and a repository's own code; each in a process of its own, since transformers keeps
what it is told by the environment when it is imported, and runs code from a cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hub_standin import hub
from support import environment

FIND = """
import json, sys
from kiseki.errors import UsageError
from kiseki.trajectory.tokens import find_tokenizer, open_counter

for asked, how in json.loads(sys.argv[1]):
    warned = []
    try:
        found = find_tokenizer(asked, warn=warned.append, **how)
        count = open_counter(found).count("hello hello")
        result = {"kind": found.kind, "source": found.source, "name": found.name, "count": count}
    except UsageError as error:
        result = {"error": str(error)}
    print(json.dumps(result | {"warned": warned}))
"""


def find_elsewhere(folder: Path, *asked: tuple[str, dict[str, bool]], **more: str) -> list[dict[str, Any]]:
    """`find_tokenizer` in a process of its own, where Hugging Face's cache is `folder`: what was found, and warnings."""
    command = [sys.executable, "-c", FIND, json.dumps(asked)]
    variables = environment(HF_HOME=str(folder), **more)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")  # the libraries have nothing to say to people
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_folders_own_code_does_not_run_unless_asked_for(own_code: Path, tmp_path: Path) -> None:
    [refused] = find_elsewhere(tmp_path, (str(own_code), {}))
    assert "Python code" in refused["error"] and "trust_remote_code" in refused["error"]
    assert not (tmp_path / "ran").exists()
    [trusted] = find_elsewhere(tmp_path, (str(own_code), {"trust_remote_code": True}))
    assert (trusted["kind"], trusted["count"], trusted["warned"]) == ("transformers", len("hello hello"), [])
    assert (tmp_path / "ran").exists()


def test_an_id_is_downloaded_once_and_then_needs_no_network(model: Path, own_code: Path, tmp_path: Path) -> None:
    with hub({"org/name": model, "org/own": own_code}) as (address, asked):
        names = ("org/name", "org/own", "org/typo")
        found, refused, missing = find_elsewhere(tmp_path, *((name, {}) for name in names), HF_ENDPOINT=address)
        assert (found["kind"], found["name"], found["warned"]) == ("file", "org/name", [])
        assert Path(found["source"]).is_relative_to(tmp_path)
        assert refused["kind"] == "bundled" and "trust_remote_code" in refused["warned"][0]
        assert missing["kind"] == "bundled" and "org/typo" in missing["warned"][0]
        assert not [path for path in asked if path.endswith((".safetensors", ".py"))]
        [trusted] = find_elsewhere(tmp_path, ("org/own", {"trust_remote_code": True}), HF_ENDPOINT=address)
        assert (trusted["kind"], trusted["count"]) == ("transformers", len("hello hello"))
    assert find_elsewhere(tmp_path, ("org/name", {}), HF_HUB_OFFLINE="1") == [found]
    assert find_elsewhere(tmp_path, ("org/name", {}), HF_ENDPOINT=address) == [found]  # nobody answers there any more


def test_an_id_that_is_not_to_be_had_is_replaced_aloud_or_an_error(tmp_path: Path) -> None:
    both = [("org/name", {}), ("org/name", {"chat_template": True})]
    replaced, refused = find_elsewhere(tmp_path, *both, HF_HUB_OFFLINE="1")
    assert (replaced["kind"], replaced["name"]) == ("bundled", "bundled (o200k_base)")
    [line] = replaced["warned"]
    assert "bundled (o200k_base) counts instead, so the counts differ" in line
    assert not refused["warned"]  # nothing else can count under the model's template
    for each in (line, refused["error"]):
        assert "org/name" in each and "offline mode" in each and "cache" in each and "name a folder" in each
        assert "\n" not in each
