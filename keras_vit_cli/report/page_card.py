"""The lines of an exported page's model card, from the report of the run that made the model."""

import json
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit.evaluation import Report
from keras_vit.evaluation.report_text import score_rows
from keras_vit_cli.report.description import describe_weights

PARTS = {"train": "training images", "val": "validation images", "test": "test images"}
MOST_SCORES = 12


def card_of_run(run: Path) -> dict[str, str]:
    """Return what the folder of a run says of data, scores and weights; nothing for another path.

    Raises:
        ValueError: The records of the run are damaged.
    """
    if not (run / "report.json").is_file():
        return {}
    try:
        facts = json.loads((run / "report.json").read_text("utf-8"))
        job = json.loads((run / "config.json").read_text("utf-8"))["job"]
        report = Report.from_dict(facts["report"])
        scores = score_rows(report.scores, report.constant)[:MOST_SCORES]
        targets, scored = facts.get("targets", {}), facts.get("scored")
        return {
            "data": Path(str(job["data"]).removeprefix("records:")).name,  # no folders of its user
            **{PARTS.get(part, part): str(text) for part, text in targets.items()},
            "scores of": scored or f"{report.examples:,} validation images, not trained on",
            **{name: f"{value} (95 % interval {between})" for name, value, between, _ in scores},
            "model": str(facts.get("model", "")),
            "started from": describe_weights(job.get("model"), job.get("weights")),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"The report or configuration of {printable(run)} is damaged ({error!r}): export its "
            "file model.keras, whose page then does not show scores."
        ) from error
