"""The comparison with scikit-learn that `make digits` prints."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.examples import load_example, recorded_train

pytest.importorskip("tensorflow")


# Accuracy and calibration error of the ViT by seed, as trained for the README.
STRATIFIED = [(0.99722, 0.02119), (0.98889, 0.02275), (0.99722, 0.02193), (0.98889, 0.0174)]
STRATIFIED += [(0.99444, 0.02011)]
HALVES = [(0.97442, 0.02245), (0.9822, 0.01502), (0.98443, 0.02483), (0.96997, 0.01779)]
HALVES += [(0.96774, 0.02232)]
RESULTS = {"digits": STRATIFIED, "digits/half": HALVES}


def test_the_printed_lines_are_those_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracies of scikit-learn are computed; those of the ViT take its training."""
    digits = load_example("digits")
    jobs: list[Any] = []
    train = recorded_train(jobs, lambda job: RESULTS[job.data][job.seed])
    monkeypatch.setattr(digits, "train", train)
    digits.main(["--out", str(tmp_path / "runs"), "--overwrite", "--seeds", "5"])
    *printed, last = capsys.readouterr().out.strip().splitlines()
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert [line.split(": ")[0] for line in printed] == ["stratified 80/20", "first/second half"]
    for line in printed:
        assert f"    {line}\n" in readme
    assert last == "means and standard deviations of seeds 0 to 4"
    assert [(job.data, job.seed, job.overwrite) for job in jobs] == [
        (name, seed, True) for name in RESULTS for seed in range(5)
    ]
    assert len({job.out for job in jobs}) == 10


def test_one_seed_has_no_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = load_example("digits")
    assert digits.mean_and_spread([0.9906]) == "99.06%"
    assert digits.mean_and_spread([0.98, 1.0]) == "99.00% ± 1.41"
    with pytest.raises(SystemExit):
        digits.main(["--seeds", "0"])
    assert "--seeds 0 must be at least 1" in capsys.readouterr().err
