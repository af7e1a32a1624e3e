"""Outcomes of classes, and what a report shows of them."""

from typing import Any

from keras_vit import data
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.report import report_of
from keras_vit.tasks import Classification, Task
from keras_vit_cli.report.results import Results, results_of


def outcomes_of(names: Any, labels: Any, logits: Any) -> Outcomes:
    task = Classification(tuple(names))
    return Outcomes.of(task, labels, task.answers(logits))


def results_of_classes(names: Any, labels: Any, logits: Any, split: Any = None) -> Results:
    outcomes = outcomes_of(names, labels, logits)
    return results_of(report_of(outcomes, labels), outcomes, split)


def results_of_task(task: Task, targets: Any, answers: Any, split: data.Split) -> Results:
    outcomes = Outcomes.of(task, targets, answers)
    return results_of(report_of(outcomes, targets), outcomes, split)
