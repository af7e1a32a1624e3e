"""What `/metrics` counts of answers, and the board that shows it."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from keras_vit_cli.serve.metrics import MOST_NAMES, OTHERS, Metrics

BOARD = Path(__file__).parents[3] / "deploy/grafana.json"


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_answers_are_counted() -> None:
    metrics = Metrics(lambda: 0)
    sure = {"predictions": [{"class": "cat", "probability": 0.9}], "set": ["cat"], "novelty": 0.4}
    unsure = {**sure, "set": ["cat", "dog"], "novelty": 1.2}
    metrics.answers([sure, unsure, {"error": "cut off"}])
    metrics.answers([{"predictions": [], "labels": ["a", "b"]}, {"grade": "mild"}])
    metrics.answers([{"predictions": [{"name": "weight", "value": 2.0}]}])  # nothing to count
    counted = samples(metrics)
    names = {name: counted["keras_vit_answers_total", name] for name in ("cat", "a", "b", "mild")}
    assert names == {"cat": 2, "a": 1, "b": 1, "mild": 1}
    assert counted["keras_vit_set_names_sum", ""] == 3
    assert counted["keras_vit_novelty_bucket", "1.0"] == 1
    assert counted["keras_vit_novelty_count", ""] == 2
    metrics.answers([{"grade": str(number)} for number in range(MOST_NAMES + 50)])
    counted = samples(metrics)
    named = [name for metric, name in counted if metric == "keras_vit_answers_total"]
    assert len(named) == MOST_NAMES + 1
    assert counted["keras_vit_answers_total", OTHERS] == 54


def test_the_board_shows_what_there_is() -> None:
    metrics = Metrics(lambda: 0)
    metrics.answers([{"grade": "mild", "set": ["mild"], "novelty": 0.5}])
    metrics.request("predict", 200, 0.1)
    metrics.batch(2, 0.1)
    known = {name for name, _ in samples(metrics)}
    board = json.loads(BOARD.read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"keras_vit_\w+", query)} <= known
