"""How good a model is: reports, and the baselines to stand beside."""

from keras_vit.evaluation.baselines import Baseline, scikit_learn_baselines
from keras_vit.evaluation.report import ClassificationReport, classification_report

__all__ = ["Baseline", "ClassificationReport", "classification_report", "scikit_learn_baselines"]
