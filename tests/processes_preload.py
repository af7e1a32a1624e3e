"""What every warm process has imported (`tests/processes.py`)."""

import os

from tests.xla_flags import QUICK_XLA

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras_vit  # noqa: F401
import keras_vit_cli.commands
import keras_vit_cli.start  # noqa: F401
