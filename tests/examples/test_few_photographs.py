"""The measurement of recipes by the number of photographs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data
from tests.examples import load_example

pytest.importorskip("tensorflow")


def test_a_choice_never_sees_the_validation_split() -> None:
    script, splits = load_example("few_photographs"), data.load("digits")
    part = script.subset(splits, 8, seed=0, final=False)
    assert np.bincount(part.train.labels()).tolist() == [8] * 10
    assert np.bincount(part.val.labels()).tolist() == [60] * 10
    train, val, held = (
        {image.tobytes() for image in split.as_arrays()[0]}
        for split in (part.train, part.val, splits.val)
    )
    assert not train & val
    assert not (train | val) & held
    final = script.subset(splits, 8, seed=0, final=True)
    np.testing.assert_array_equal(final.train.as_arrays()[0], part.train.as_arrays()[0])
    assert final.val is splits.val
    other = script.subset(splits, 8, seed=1, final=False)
    assert (other.train.as_arrays()[0] != part.train.as_arrays()[0]).any()
    with pytest.raises(ValueError, match="--shots 500 leaves no"):
        script.subset(splits, 500, seed=0, final=False)


def test_the_table_has_means_and_what_auto_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_example("few_photographs")
    calls: list[tuple[str, int]] = []

    def run(options: Any, splits: Any, name: str, seed: int, folder: Path) -> dict[str, float]:
        calls.append((name, seed))
        return {"accuracy": 0.9 + 0.02 * seed, "error": 0.01, "minutes": 2.0}

    monkeypatch.setattr(script, "run", run)
    words = ["few_photographs.py", "--data", "digits", "--shots", "8", "--seeds", "2"]
    words += ["--recipes", "probe", "finetune_few", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    script.main()
    text = (tmp_path / "table.md").read_text()
    assert "| 8 | finetune_few | 91.00% ± 1.41 | 1.00% ± 0.00 | 2.0 | chosen |" in text
    assert "| 8 | probe | 91.00% ± 1.41 | 1.00% ± 0.00 | 2.0 |  |" in text
    assert text in capsys.readouterr().out
    assert len(calls) == 4
    script.main()  # all rows are there
    assert len(calls) == 4
    row = json.loads((tmp_path / "choice-8-probe-1" / "row.json").read_text())
    assert row["accuracy"] == 0.92
