"""The compressor as its users run it: files in, files out, nothing lost whatever happens."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support import children, kiseki, read_rows, start_kiseki, write_dataset

from kiseki.commands.main import main
from kiseki.models.mock_server import MockServer

LADDER = ("--strategy=ladder", "--target_max_tokens=1500")


def unit(number: int, size: int = 300) -> list[dict[str, str]]:
    """A call and its result of about `size` tokens."""
    call = {"name": "terminal", "arguments": {"command": f"cat part_{number}.py"}}
    output = "\n".join(f"part {number}, line {at}: value_{at * 37 % 101} = {at * number}" for at in range(size // 18))
    response = {"tool_call_id": f"call_{number}", "name": "terminal", "content": {"output": output, "exit_code": 0}}
    return [
        {"from": "gpt", "value": f"<think>\nNext is part {number}.\n</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"},
        {"from": "tool", "value": f"<tool_response>\n{json.dumps(response)}\n</tool_response>"},
    ]


def row(units: int, name: str = "a", size: int = 300, **columns: Any) -> dict[str, Any]:
    turns = [{"from": "system", "value": "Call functions."}, {"from": "human", "value": f"Task {name}"}]
    turns += [turn for number in range(units) for turn in unit(number, size)]
    return {"conversations": [*turns, {"from": "gpt", "value": f"<think>\n</think>\nDone with {name}."}], **columns}


def tokens_of(path: Path) -> list[int]:
    return [each["compression_metrics"]["compressed_tokens"] for each in read_rows(path)]


def compress(*arguments: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `kiseki compress …` in this process, which is a second faster than in one of its own, and check its exit status."""
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with chdir(cwd), redirect_stdout(out), redirect_stderr(error), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        patch.delenv("OPENROUTER_API_KEY", raising=False)
        found = main(["compress", *arguments])
    shown = []
    for stream, memory in ((out, out.buffer), (error, error.buffer)):
        stream.flush()
        assert isinstance(memory, io.BytesIO)
        shown.append(memory.getvalue().decode())
    assert found == status, (found, *shown)
    return subprocess.CompletedProcess(arguments, found, *shown)


def summary_config(
    folder: Path, server: MockServer, at_once: int = 50, workers: int = 1, metrics: bool = True, **summarization: Any
) -> str:
    settings = {
        "summarization": {"model": "mock", "base_url": server.base_url, "retry_delay": 0.001, **summarization},
        "compression": {"target_max_tokens": 1500, "summary_target_tokens": 100},
        "processing": {"max_concurrent_requests": at_once, "num_workers": workers},
        "metrics": {"enabled": metrics},
    }
    (folder / "summary.yaml").write_text(json.dumps(settings))  # JSON is YAML
    return "--config=summary.yaml"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    listed = [row(units, str(units), number=units, nested={"of": [units, 1.0, None]}) for units in (1, 12, 3, 20, 8)]
    return write_dataset(tmp_path / "rows.jsonl", listed)


def test_every_row_fits_and_keeps_its_columns(rows: Path, tmp_path: Path) -> None:
    done = compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    before, after = read_rows(rows), read_rows(tmp_path / "rows_compressed.jsonl")
    assert "rows_compressed.jsonl" in done.stdout
    assert [(each["number"], each["nested"]) for each in after] == [(each["number"], each["nested"]) for each in before]
    assert max(tokens_of(tmp_path / "rows_compressed.jsonl")) <= 1500
    assert after[0]["conversations"] == before[0]["conversations"]
    assert after[0]["compression_metrics"]["skipped_under_target"]
    assert after[3]["compression_metrics"]["was_compressed"]
    for one, other in zip(before, after, strict=True):  # the first four turns and the last four
        assert other["conversations"][:4] == one["conversations"][:4]
        assert other["conversations"][-4:] == one["conversations"][-4:]
    assert len({json.dumps(list(each["compression_metrics"])) for each in after}) == 1
    aggregate = json.loads((tmp_path / "rows_compressed_metrics.json").read_text())
    assert aggregate["summary"]["total_trajectories"] == 5
    assert aggregate["tokens"]["total_after"] == sum(tokens_of(tmp_path / "rows_compressed.jsonl"))
    made = {"rows_compressed.jsonl", "rows_compressed_metrics.json", ".rows_compressed.jsonl.done"}
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", *made}


def test_every_file_format_comes_out_as_it_went_in(rows: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    text = rows.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(text))
    flat = [{"conversations": each["conversations"], "number": each["number"]} for each in read_rows(rows)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), tmp_path / "c.parquet")
    compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    expected = (tmp_path / "rows_compressed.jsonl").read_bytes()
    for name in ("a.jsonl.gz", "b.jsonl.zst", "c.parquet"):
        compress(f"--input={name}", *LADDER, cwd=tmp_path)
    assert gzip.decompress((tmp_path / "a_compressed.jsonl.gz").read_bytes()) == expected
    packed = (tmp_path / "b_compressed.jsonl.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == expected
    table = pyarrow.parquet.read_table(tmp_path / "c_compressed.parquet").to_pylist()
    assert [each["conversations"] for each in table] == [each["conversations"] for each in map(json.loads, expected.splitlines())]
    assert [each["compression_metrics"]["compressed_tokens"] for each in table] == tokens_of(tmp_path / "rows_compressed.jsonl")


def test_a_run_folder(tmp_path: Path) -> None:
    write_dataset(tmp_path / "prompts.jsonl", [{"prompt": f"How many prime numbers are below {n}?"} for n in (10, 20, 30)])
    run = ("--dataset_file=prompts.jsonl", "--batch_size=2", "--run_name=r", "--model=builtin/practice", "--engine=inprocess")
    kiseki("batch", *run, "--distribution=terminal_only", "--sandbox=local", cwd=tmp_path)
    compress("--input=data/r", "--strategy=ladder", cwd=tmp_path)
    before, after = (
        read_rows(tmp_path / "data/r/trajectories.jsonl"),
        read_rows(tmp_path / "data/r_compressed/trajectories.jsonl"),
    )
    assert [each["conversations"] for each in after] == [each["conversations"] for each in before]
    assert sorted(path.name for path in (tmp_path / "data/r_compressed").iterdir()) == [
        "compression_metrics.json",
        "trajectories.jsonl",
    ]


def test_a_folder_with_files_that_are_no_trajectories(rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows.rename(folder / "one.jsonl")
    write_dataset(folder / "two.jsonl", [row(9, "two")])
    write_dataset(folder / "prompts.jsonl", [{"prompt": "no conversation"}])
    (folder / "notes.txt").write_text("hello")
    (folder / "statistics.json").write_text("{}")
    done = compress("--input=in", *LADDER, cwd=tmp_path)
    assert "prompts.jsonl is left out: line 1" in done.stdout
    assert sorted(path.name for path in (tmp_path / "in_compressed").iterdir()) == [
        "compression_metrics.json",
        "one.jsonl",
        "two.jsonl",
    ]
    assert len(read_rows(tmp_path / "in_compressed/one.jsonl")) == 5
    assert "no trajectories" in compress("--input=.", *LADDER, cwd=tmp_path, status=2).stderr


def test_lines_that_cannot_be_read_are_kept_apart(rows: Path, tmp_path: Path) -> None:
    martian = '{"conversations": [{"from": "martian", "value": "x"}]}'
    bad = ['{"conversations": [', "\\xff", martian, '"text"', '{"prompt": "x"}']
    text = rows.read_text() + "\n".join(bad) + "\n"
    rows.write_bytes(text.encode().replace(b"\\xff", b"\xff\xfe"))
    done = compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    assert "unreadable" in done.stdout
    rejects = read_rows(tmp_path / "rows_compressed_rejects.jsonl")
    assert [each["line"] for each in rejects] == [6, 7, 8, 9, 10]
    assert "martian" in rejects[2]["reason"] and rejects[0]["text"] == bad[0] and rejects[1]["text"] == r"\xff\xfe"
    assert len(read_rows(tmp_path / "rows_compressed.jsonl")) == 5
    write_dataset(tmp_path / "none.jsonl", bad[2:])
    refused = compress("--input=none.jsonl", *LADDER, cwd=tmp_path, status=2)
    assert "none.jsonl, line 1" in refused.stderr
    assert not list(tmp_path.glob("none_*")) and not list(tmp_path.glob(".none*"))


def test_input_equal_to_output_and_the_same_file_twice(rows: Path, tmp_path: Path) -> None:
    compress("--input=rows.jsonl", "--output=once.jsonl", *LADDER, cwd=tmp_path)
    compress("--input=rows.jsonl", "--output=rows.jsonl", *LADDER, cwd=tmp_path)
    once = (tmp_path / "once.jsonl").read_bytes()
    assert rows.read_bytes() == once
    compress("--input=rows.jsonl", "--output=rows.jsonl", *LADDER, cwd=tmp_path)
    assert rows.read_bytes() == once, "what was compressed stays as it is"
    again = compress("--input=once.jsonl", "--output=twice.jsonl", *LADDER, cwd=tmp_path)
    assert (tmp_path / "twice.jsonl").read_bytes() == once, again.stdout


def test_a_whole_output_is_not_made_again(rows: Path, tmp_path: Path) -> None:
    compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    made = (tmp_path / "rows_compressed.jsonl").stat()
    done = compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    assert "there already" in done.stdout and (tmp_path / "rows_compressed.jsonl").stat().st_ino == made.st_ino
    compress("--input=rows.jsonl", "--strategy=ladder", "--target_max_tokens=1200", cwd=tmp_path)
    assert (tmp_path / "rows_compressed.jsonl").stat().st_ino != made.st_ino
    assert max(tokens_of(tmp_path / "rows_compressed.jsonl")) <= 1200


def test_samples(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(1, str(number), number=number) for number in range(200)])
    taken = {}
    for seed in (42, 43):
        compress(
            "--input=rows.jsonl",
            f"--output={seed}.jsonl",
            "--sample_percent=10",
            f"--seed={seed}",
            *LADDER,
            cwd=tmp_path,
        )
        taken[seed] = [each["number"] for each in read_rows(tmp_path / f"{seed}.jsonl")]
    assert len(taken[42]) == len(taken[43]) == 20 and taken[42] != taken[43]
    write_dataset(tmp_path / "one.jsonl", [row(1)])
    done = compress("--input=one.jsonl", "--sample_percent=0.1", *LADDER, cwd=tmp_path)
    assert (tmp_path / "one_compressed.jsonl").read_bytes() == b"" and "Traceback" not in done.stderr
    assert json.loads((tmp_path / "one_compressed_metrics.json").read_text())["summary"]["total_trajectories"] == 0


def test_a_file_in_a_folder_is_judged_by_more_than_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_dataset(tmp_path / "in/a.jsonl", ['{"conversations": [{"fr', row(1, "a"), row(12, "b")])
    compress("--input=in", *LADDER, cwd=tmp_path)
    assert len(read_rows(tmp_path / "in_compressed/a.jsonl")) == 2
    assert len(read_rows(tmp_path / "in_compressed/a_rejects.jsonl")) == 1


def test_files_of_one_stem_and_many_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(60):
        write_dataset(tmp_path / f"in/{number:02}.jsonl", [row(1, str(number)), "broken"])
    (tmp_path / "in/00.jsonl.gz").write_bytes(gzip.compress((tmp_path / "in/00.jsonl").read_bytes() + b"too\n"))
    command = f"ulimit -n 40; exec {sys.executable} -m kiseki compress --input=in {' '.join(LADDER)}"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    out = tmp_path / "in_compressed"
    assert len(list(out.glob("*_rejects.jsonl"))) == 61
    assert len(read_rows(out / "00.jsonl_rejects.jsonl")) == 1 and len(read_rows(out / "00.jsonl.gz_rejects.jsonl")) == 2


def test_what_was_made_of_a_file_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_dataset(tmp_path / "in/a.jsonl", [row(12)])
    compress("--input=in/a.jsonl", *LADDER, cwd=tmp_path)
    done = compress("--input=in", *LADDER, cwd=tmp_path)
    assert "a_compressed.jsonl is left out" in done.stdout
    assert {path.name for path in (tmp_path / "in_compressed").glob("*.jsonl")} == {"a.jsonl"}


def test_no_file_of_the_user_is_written_over(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a.jsonl", [row(1), "broken"])
    write_dataset(tmp_path / "dpo_rejects.jsonl", [{"mine": True}])
    refused = compress("--input=a.jsonl", "--output=dpo.jsonl", *LADDER, cwd=tmp_path, status=2)
    assert "was not written here" in refused.stderr
    assert read_rows(tmp_path / "dpo_rejects.jsonl") == [{"mine": True}]
    for name in ("a.jsonl", "a_compressed.jsonl", "sub/m.json"):
        (tmp_path / "m.yaml").write_text(f"metrics: {{output_file: {name}}}\n")
        compress("--input=a.jsonl", *LADDER, "--config=m.yaml", cwd=tmp_path, status=2)
    (tmp_path / "m.yaml").write_text("output: {output_suffix: ''}\n")
    compress("--input=a.jsonl", *LADDER, "--config=m.yaml", cwd=tmp_path, status=2)
    part = ("--output=a.jsonl", "--sample_percent=10")
    assert "a part of the input" in compress("--input=a.jsonl", *part, *LADDER, cwd=tmp_path, status=2).stderr
    compress("--input=", *LADDER, cwd=tmp_path, status=2)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_a_dry_run_writes_nothing(rows: Path, tmp_path: Path) -> None:
    done = compress("--input=rows.jsonl", *LADDER, "--dry_run", "--plot=tokens.png", cwd=tmp_path)
    assert "before" in done.stdout and "after" in done.stdout and "would do" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "tokens.png"]
    assert (tmp_path / "tokens.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "c.yaml").write_text("summarization: {base_url: 'http://127.0.0.1:9/v1', model: some/model}\n")
    (tmp_path / "p.yaml").write_text("some/model: {input: 1000, output: 1000}\n")
    summary = ("--input=rows.jsonl", "--target_max_tokens=1500", "--dry_run", "--config=c.yaml")
    done = compress(*summary, "--prices=p.yaml", cwd=tmp_path)
    said = re.search(r"3 summaries would be asked of some/model: about ([\d,]+) tokens in and 2,250 out, \$(\S+)", done.stdout)
    assert said and float(said[2]) == round((int(said[1].replace(",", "")) + 2250) / 1000, 2)
    assert "price not known" in compress(*summary, cwd=tmp_path).stdout


def test_show(rows: Path, tmp_path: Path) -> None:
    listed = read_rows(rows)
    listed[1]["conversations"][1]["value"] = "Task \x1b]0;owned\x07 [red]not markup[/red]"
    write_dataset(rows, listed)
    done = compress("--input=rows.jsonl", *LADDER, "--show=2", cwd=tmp_path)
    assert "before" in done.stdout and "[red]not markup[/red]" in done.stdout
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "rows.jsonl, line 2" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    assert "no row 9" in compress("--input=rows.jsonl", *LADDER, "--show=9", cwd=tmp_path, status=2).stderr


def test_strict(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(1, size=3000), row(1, size=40)])
    compress("--input=rows.jsonl", *LADDER, cwd=tmp_path)
    compress("--input=rows.jsonl", "--output=b.jsonl", *LADDER, "--strict", cwd=tmp_path, status=3)
    compress("--input=rows.jsonl", "--output=b.jsonl", *LADDER, "--strict", cwd=tmp_path, status=3)
    over = read_rows(tmp_path / "b.jsonl")[0]["compression_metrics"]
    assert over["still_over_limit"] and not over["was_compressed"] and over["error"]
    (tmp_path / "drop.yaml").write_text("processing: {save_over_limit: false}\n")
    compress("--input=rows.jsonl", "--output=c.jsonl", *LADDER, "--config=drop.yaml", cwd=tmp_path)
    assert len(read_rows(tmp_path / "c.jsonl")) == 1
    assert "still over the target" in read_rows(tmp_path / "c_rejects.jsonl")[0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "missing --input"),
        (("--input=nowhere.jsonl",), "there is no nowhere.jsonl"),
        (("--input=rows.jsonl", "--output=x.txt"), "x.txt is none of"),
        (("--input=rows.jsonl", "--output=x.parquet"), "parquet needs parquet input"),
        (("--input=rows.jsonl", "--sample_percent=0"), "above 0"),
        (("--input=rows.jsonl", "--strategy=magic"), "summary, ladder, segment"),
        (("--input=rows.jsonl", "--config=bad.yaml"), "unknown key compression.target_tokens"),
        (("--input=rows.jsonl", "--config=typed.yaml"), "protected_turns.last_n_turns: 'four' is not a whole number"),
        (("--input=rows.jsonl", "--tokenizer=./nowhere/tokenizer.json"), "nowhere"),
    ],
)
def test_what_cannot_be_used_is_one_line(rows: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "bad.yaml").write_text("compression: {target_tokens: 5}\n")
    (tmp_path / "typed.yaml").write_text("protected_turns: {last_n_turns: four}\n")
    before = set(tmp_path.iterdir())
    done = compress(*arguments, cwd=tmp_path, status=2)
    assert words in done.stderr and done.stderr.count("\n") == 1 and set(tmp_path.iterdir()) == before


def test_no_key_is_said_only_where_one_is_needed(rows: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    done = compress("--input=rows.jsonl", "--target_max_tokens=1500", cwd=tmp_path, status=2)
    assert "OPENROUTER_API_KEY" in done.stderr and "--strategy=ladder" in done.stderr and done.stderr.count("\n") == 1
    assert set(tmp_path.iterdir()) == before
    compress("--input=rows.jsonl", cwd=tmp_path)
    assert len(read_rows(tmp_path / "rows_compressed.jsonl")) == 5


# ---- killed -----------------------------------------------------------------------------------------------------------------


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parts_of(process: subprocess.Popen[str], partial: Path, size: int) -> Iterator[None]:
    """Until the job has kept so many bytes."""
    while process.poll() is None and not (partial.exists() and partial.stat().st_size >= size):
        time.sleep(0.01)
        yield


def test_a_killed_job_goes_on(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(60, str(number), size=600) for number in range(120)])
    (tmp_path / "two.yaml").write_text("processing: {num_workers: 2}\n")
    command = ("--input=rows.jsonl", *LADDER, "--config=two.yaml")
    compress(*command, "--output=whole.jsonl", cwd=tmp_path)
    partial = tmp_path / ".killed.jsonl.partial"
    for size in (1, 300_000):  # bytes that are kept by then
        process = start_kiseki("compress", *command, "--output=killed.jsonl", cwd=tmp_path)
        for _ in parts_of(process, partial, size):
            pass
        kill_group(process)
        if not partial.exists():
            pytest.fail("it was done before it could be killed")
        assert not (tmp_path / "killed.jsonl").exists()
    with partial.open("ab") as file:
        file.write(b"\0" * 64 + b"torn")
    done = compress(*command, "--output=killed.jsonl", cwd=tmp_path)
    assert "going on" in done.stdout
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [path.name for path in tmp_path.glob(".killed*")] == [".killed.jsonl.done"]


def test_no_summary_is_bought_twice(tmp_path: Path) -> None:
    count = 24
    write_dataset(tmp_path / "rows.jsonl", [row(12, str(number)) for number in range(count)])
    with MockServer(turns=0, latency=0.2) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server, at_once=3))
        process = start_kiseki("compress", *command, cwd=tmp_path)
        while server.stats()["calls"] < 9:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        kill_group(process)
        bought = server.stats()["calls"]
        other = compress(*command, "--target_max_tokens=1400", cwd=tmp_path, status=2)
        assert "other settings" in other.stderr
        compress(*command, cwd=tmp_path)
        assert server.stats()["calls"] <= count + 3, "only those under way when it was killed are asked for again"
        assert bought >= 9 and server.stats()["peak_in_flight"] <= 3
    after = read_rows(tmp_path / "rows_compressed.jsonl")
    assert all("[CONTEXT SUMMARY]" in json.dumps(each["conversations"]) for each in after) and len(after) == count


def test_rows_without_a_summary_are_tried_again(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(1), row(12, "b"), row(12, "c")])
    with MockServer(turns=0, faults={"error_500": 1.0}) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server, max_retries=1))
        done = compress(*command, cwd=tmp_path, status=3)
    assert "2 rows are as they were, since their summary could not be had" in done.stdout
    before, after = read_rows(tmp_path / "rows.jsonl"), read_rows(tmp_path / "rows_compressed.jsonl")
    assert [each["conversations"] for each in after] == [each["conversations"] for each in before]
    assert [bool(each["compression_metrics"]["error"]) for each in after] == [False, True, True]
    assert after[1]["compression_metrics"]["summarization_errors"] == 2
    with MockServer(turns=0, port=int(server.root_url.rpartition(":")[2])) as healthy:
        compress(*command, cwd=tmp_path)
        assert healthy.stats()["calls"] == 2
    assert [bool(each["compression_metrics"]["error"]) for each in read_rows(tmp_path / "rows_compressed.jsonl")] == [False] * 3
    assert not list(tmp_path.glob(".*.partial"))


def test_rows_without_a_summary_are_tried_again_in_place_and_by_other_means(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(1), row(12, "b"), row(12, "c")])
    write_dataset(tmp_path / "own.jsonl", [row(12, "d")])
    with MockServer(turns=0, faults={"error_500": 1.0}) as server:
        config = summary_config(tmp_path, server, max_retries=0)
        command = ("--input=rows.jsonl", "--output=rows.jsonl", config)
        compress(*command, cwd=tmp_path, status=3)
        compress(*command, cwd=tmp_path, status=3)
        compress("--input=own.jsonl", config, cwd=tmp_path, status=3)
    compress("--input=own.jsonl", config, "--strategy=ladder", cwd=tmp_path)
    assert max(tokens_of(tmp_path / "own_compressed.jsonl")) <= 1500
    with MockServer(turns=0) as healthy:
        compress("--input=rows.jsonl", "--output=rows.jsonl", summary_config(tmp_path, healthy), cwd=tmp_path)
        assert healthy.stats()["calls"] == 2
    assert max(tokens_of(tmp_path / "rows.jsonl")) <= 1500
    assert [path.name for path in tmp_path.glob(".*")] == [".own_compressed.jsonl.done", ".rows.jsonl.done"]


def test_what_is_bought_is_kept_when_processes_die(tmp_path: Path) -> None:
    """Six rows need summaries, one at a time; further blocks of rows wait until fewer do, and meet dead processes."""
    write_dataset(tmp_path / "rows.jsonl", [*(row(12, str(n)) for n in range(6)), *(row(1, str(n)) for n in range(2300))])
    with MockServer(turns=0, latency=0.2) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server, at_once=1, workers=2, metrics=False))
        process = start_kiseki("compress", *command, cwd=tmp_path)
        while not server.stats()["calls"]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        said, _ = process.communicate()
        assert process.returncode == 1 and "a worker process died" in said and "the same command goes on" in said
        compress(*command, cwd=tmp_path)
        compress(*command, cwd=tmp_path)
        assert server.stats()["calls"] == 6, "and a whole output is not bought again, metrics file or not"
        done = compress(*command, "--show=1", "--dry_run", cwd=tmp_path)
        assert server.stats()["calls"] == 6 and "here would be the summary" in done.stdout
    assert len(read_rows(tmp_path / "rows_compressed.jsonl")) == 2306


def test_a_picture_of_a_whole_output_buys_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(1), row(12, "b")])
    with MockServer(turns=0) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server))
        compress(*command, cwd=tmp_path)
        compress(*command, "--plot=later.png", cwd=tmp_path)
        assert server.stats()["calls"] == 1
    assert (tmp_path / "later.png").read_bytes().startswith(b"\x89PNG")


def test_a_budget_holds_over_all_sessions(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(12, str(number)) for number in range(8)])
    with MockServer(turns=0) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server, at_once=1), "--max_total_tokens=20000")
        compress(*command, cwd=tmp_path, status=3)
        bought = server.stats()["calls"]
        compress(*command, cwd=tmp_path, status=3)
        assert 0 < bought < 8 and server.stats()["calls"] == bought
        done = compress(*command, "--max_total_tokens=200000", cwd=tmp_path)
        assert server.stats()["calls"] == 8 and "summaries:" in done.stdout


def test_two_processes_on_one_output(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [row(12)])
    with MockServer(turns=0, latency=20) as server:
        command = ("--input=rows.jsonl", summary_config(tmp_path, server, workers=2))
        process = start_kiseki("compress", *command, cwd=tmp_path)
        while not server.stats()["calls"]:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        assert "another process" in compress(*command, cwd=tmp_path, status=2).stderr
        workers = children(process.pid)
        process.kill()
        process.wait()
        while any(is_alive(worker) for worker in workers):  # they end with it, whatever it was killed by
            time.sleep(0.01)
        assert len(workers) == 2
