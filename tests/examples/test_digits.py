"""The comparison with scikit-learn that `make digits` prints."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.examples import load_example

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.once


def test_the_printed_lines_are_those_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracies of scikit-learn are computed; those of the ViT take its training."""
    digits = load_example("digits")
    accuracies = {"runs": 0.9861, "runs_half": 0.9511}
    jobs: list[Any] = []

    def train(job: Any) -> Any:
        jobs.append(job)
        return SimpleNamespace(accuracy=accuracies[job.out.name])

    monkeypatch.setattr(digits, "train", train)
    digits.main(["--out", str(tmp_path / "runs"), "--overwrite"])
    printed = capsys.readouterr().out.strip().splitlines()
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert [line.split(": ")[0] for line in printed] == ["stratified 80/20", "first/second half"]
    for line in printed:
        assert f"    {line}\n" in readme
    assert [(job.data, job.overwrite) for job in jobs] == [("digits", True), ("digits/half", True)]
