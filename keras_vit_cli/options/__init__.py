"""The options of every command: one dataclass per command, from which its parser is made.

An option is stated once, as a field: its type, default, help and range. Standard library alone.
"""

from keras_vit_cli.options.augment import AUGMENT
from keras_vit_cli.options.inspect import INSPECT
from keras_vit_cli.options.model_options import (
    AVERAGE,
    CHECK,
    COMBINE,
    CONVERT,
    EXPORT,
    LIST,
    PLAN,
)
from keras_vit_cli.options.option import Command
from keras_vit_cli.options.photo_options import AUDIT, CHOOSE, CLUSTER, EMBED, LABEL, SEARCH
from keras_vit_cli.options.predict import PREDICT
from keras_vit_cli.options.pretrain import PRETRAIN
from keras_vit_cli.options.score_options import CALIBRATE, COMPARE, EVALUATE
from keras_vit_cli.options.serve import SERVE
from keras_vit_cli.options.train import TRAIN

COMMANDS: dict[str, Command] = {
    "train": TRAIN,
    "pretrain": PRETRAIN,
    "calibrate": CALIBRATE,
    "predict": PREDICT,
    "evaluate": EVALUATE,
    "compare": COMPARE,
    "inspect": INSPECT,
    "embed": EMBED,
    "search": SEARCH,
    "cluster": CLUSTER,
    "choose": CHOOSE,
    "audit": AUDIT,
    "label": LABEL,
    "export": EXPORT,
    "check": CHECK,
    "serve": SERVE,
    "convert": CONVERT,
    "average": AVERAGE,
    "combine": COMBINE,
    "plan": PLAN,
    "augment": AUGMENT,
    "list": LIST,
}
