"""The example that prints the means of docs/photographs.md."""

from pathlib import Path
from typing import Any

import pytest

from tests.examples import load_example, recorded_train

pytest.importorskip("tensorflow")


def test_several_seeds_are_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_example("finetune_flowers")
    jobs: list[Any] = []
    train = recorded_train(jobs, lambda job: (0.95 + 0.02 * job.seed, 0.02 + 0.01 * job.seed))
    monkeypatch.setattr(script, "train", train)
    words = ["--data", "photos", "--image-size", "64", "--out", str(tmp_path / "runs")]
    script.main([*words, "--seeds", "2"])
    out = capsys.readouterr().out
    assert "accuracy 96.00% ± 1.41, calibration error 2.50% ± 0.71; seeds 0 to 1\n" in out
    assert "seed 1: 97.00%\n" in out
    assert [(job.out.name, job.seed, job.image_size) for job in jobs] == [
        ("runs_0", 0, 64),
        ("runs_1", 1, 64),
    ]
    # A third seed: the first two are there, and the last is new.
    script.main([*words, "--seeds", "3", "--resume"])
    assert [job.resume for job in jobs[2:]] == [True, True, False]
    script.main(words)
    assert jobs[-1].out == tmp_path / "runs"
    assert "accuracy 95.00%, calibration error 2.00%\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="seeds=0"):
        script.main(["--seeds", "0"])
