"""What the library says of its arguments, as each command prints it."""

import shlex
import warnings

import pytest

from keras_vit.data import DataRangeWarning
from keras_vit_cli.exit_status import message_of
from keras_vit_cli.library_words import in_options
from keras_vit_cli.options import COMMANDS
from keras_vit_cli.printing import short_warnings

# The command | a message of the library | what is printed.
MESSAGES = """
train | cache=9 is too few: leave cache= out. | --cache 9 is too few: leave --cache out.
train | give one as label_columns=. | give one as --label-columns.
train | no pixels (nodata='mean') | no pixels (--nodata mean)
train | load it with bands=(4, 3, 2). | load it with --bands 4,3,2.
train | give balance="weights" or balance="logits" | give --balance weights or --balance logits
train | separator=' ', separator=',' or | --separator ' ', --separator , or
train | separator='|'. | --separator '|'.
train | held_out=0, learning_rate=1e-05 | --held-out 0, --learning-rate 1e-05
train | distillation='hard', checkpoint_seconds=0.5 | --distill hard, --checkpoint-every 0.5
train | is not empty: out= or overwrite=True | is not empty: --out or --overwrite
train | overwrite=False, coverage=None | overwrite=False, coverage=None
train | by val_fraction and seed, which seed= sets | by --val-fraction and seed, which --seed sets
train | recipe.scaled(steps=9) shortens it | --steps 9 shortens it
train | task=keras_vit.tasks.Ordinal(('a b', 'c')) | --order 'a b,c'
train | f(seed=1), f(x, seed=1), a.b(c(seed=1), 2) | f(seed=1), f(x, seed=1), a.b(c(seed=1), 2)
train | seed=1/a.png, runs/seed=1, 'seed=1', seed==1 | seed=1/a.png, runs/seed=1, 'seed=1', seed==1
train | out='a\\x1b', num_classes=3, patch_size | out='a\\x1b', num_classes=3, patch_size
plan | num_classes=3 | --num-classes 3
export | path='a.onnx' is one. Give another path= | --out a.onnx is one. Give another --out
export | give model= or image_size | give model= or --image-size
evaluate | k=99 and shots=3, fewshot=(1, 5) | --knn 99 and --fewshot 3, --fewshot 1 5
search | keras_vit.curation.embed(m, n, o). | keras-vit embed PHOTOS --model MODEL --out INDEX.
convert | keras_vit.export, keras_vit.exporting.f | keras-vit export, keras_vit.exporting.f
serve | which keras_vit.list_weights() shows | which keras-vit list --weights shows
"""
ROWS = [line.split(" | ") for line in MESSAGES.strip().splitlines()]


@pytest.mark.parametrize(("command", "text", "printed"), ROWS)
def test_arguments_become_options(command: str, text: str, printed: str) -> None:
    assert in_options(text, command) == printed
    assert message_of(ValueError(text), command) == printed
    assert message_of(ValueError(text)) == text
    with short_warnings(command):
        line = warnings.formatwarning(DataRangeWarning(text), DataRangeWarning, "file.py", 1)
    assert line == f"keras-vit: warning: {printed}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_known_by_its_argument(command: str) -> None:
    for row in COMMANDS[command].rows:
        if name := row.settings.get("dest"):
            is_flag = "action" in row.settings
            words = shlex.split(in_options(f"give {name}={True if is_flag else 'a'}.", command))
            assert words == (["give", f"{row.name}."] if is_flag else ["give", row.name, "a."])
