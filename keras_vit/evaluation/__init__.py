"""Classification reports, few-shot, zero-shot, k-NN and linear probes on features."""

from keras_vit.evaluation.calibration import Calibration, calibration
from keras_vit.evaluation.features import features
from keras_vit.evaluation.fewshot import FewShot, fewshot_accuracy, fewshot_table
from keras_vit.evaluation.novelty import NoveltyReport, fit_novelty
from keras_vit.evaluation.prediction import evaluate, predict_split
from keras_vit.evaluation.probes import LinearProbe, knn_accuracy, linear_probe
from keras_vit.evaluation.report import Report, classification_report, report
from keras_vit.evaluation.set_report import SetReport, set_report
from keras_vit.evaluation.task_probe import TaskProbe, task_probe
from keras_vit.evaluation.temperature import divide_logits, fit_temperature
from keras_vit.evaluation.zero_shot import zero_shot

__all__ = [
    "Calibration",
    "FewShot",
    "LinearProbe",
    "NoveltyReport",
    "Report",
    "SetReport",
    "TaskProbe",
    "calibration",
    "classification_report",
    "divide_logits",
    "evaluate",
    "features",
    "fewshot_accuracy",
    "fewshot_table",
    "fit_novelty",
    "fit_temperature",
    "knn_accuracy",
    "linear_probe",
    "predict_split",
    "report",
    "set_report",
    "task_probe",
    "zero_shot",
]
