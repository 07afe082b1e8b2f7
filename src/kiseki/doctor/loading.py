"""Files loaded as trainers load them, and what that says of the problems that were found by reading."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kiseki.doctor.findings import Check, Findings, Place, Problem
from kiseki.doctor.load_program import LoadJob, LoadReport
from kiseki.doctor.programs import last_words, start

_SETTLED = ("type changes late", "key appears late", "columns differ between files", "nested too deep")
"""By the documented rules of `datasets`; where the installed one loads the file all the same, only others fail."""


def check_loading(findings: Findings, files: Sequence[Path], longest: int, scratch: Path) -> None:
    """Load the files, all JSON lines or all parquet, and add what comes of it.

    longest: Bytes of the longest line.
    """
    parquet = files[0].suffix == ".parquet"
    job = LoadJob(
        [str(file.absolute()) for file in files], "parquet" if parquet else "json", str(scratch), max(2**20, 2 * longest)
    )
    report = _run(job, scratch)
    by_name = {str(file.absolute()): file.name for file in files}
    for file, error in report.pyarrow_errors.items():
        kind = "parquet does not load" if parquet else "pyarrow does not load it"
        findings.add(Problem(kind, error, "pyarrow"), Place(by_name[file], 0))
    if report.pyarrow:
        findings.checks.append(Check(f"loads with pyarrow {report.pyarrow}", len(files), "files", "loading", "pyarrow"))
    if not report.datasets and report.datasets_error is None:
        findings.checks.append(
            Check("loads with datasets", note="not installed (pip install 'kiseki[hf]'): its documented rules were checked")
        )
        return
    if report.datasets_error is not None:
        words = ": ".join(filter(None, (report.datasets and f"datasets {report.datasets}", report.datasets_error)))
        findings.add(Problem("datasets does not load it", words, "datasets"), Place("", 0))
    elif not parquet:  # of which none of them is told
        findings.soften(_SETTLED, f"datasets {report.datasets} loads it all the same")
    for column in report.times:
        findings.add(Problem("text becomes a timestamp", column), Place("", 0))
    count = max(report.rows, 0)
    findings.checks.append(Check(f"loads with datasets {report.datasets}".rstrip(), count, "rows", "loading", "datasets"))


def _run(job: LoadJob, scratch: Path) -> LoadReport:
    with tempfile.TemporaryFile(dir=scratch) as stderr:
        with start("kiseki.doctor.load_program", msgspec.json.encode(job), scratch, stderr) as process:
            assert process.stdout is not None
            answer = process.stdout.read()
        if process.returncode == 0:
            return msgspec.json.decode(answer, type=LoadReport)
        return LoadReport(
            datasets="", datasets_error=f"the process that loads it ended with {process.returncode}: {last_words(stderr)}"
        )
