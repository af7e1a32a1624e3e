"""Every override of `keras.Model` says which Keras makes it unnecessary."""

import re
import types

import keras

from keras_vit import trainer
from keras_vit.trainer.compiled_model import CompiledModel
from tests.conftest import REPOSITORY

ROW = re.compile(r"^(\w+) +.*  (none yet: .+|none yet, as `\w+`|3\.\d+, .+)$", re.M)


def test_the_table_lists_every_override() -> None:
    table = [name for name, _ in ROW.findall(trainer.__doc__)]
    written = [name for name, part in vars(CompiledModel).items() if callable(part)]
    assert all(isinstance(vars(CompiledModel)[name], types.FunctionType) for name in table)
    assert sorted(table) == sorted(name for name in written if hasattr(keras.Model, name))


def test_every_file_names_the_keras_that_makes_it_unnecessary() -> None:
    for file in (REPOSITORY / "keras_vit/trainer").glob("[!_]*.py"):
        docstring = file.read_text("utf-8").split('"""')[1]
        assert re.search(r"\n\nUnnecessary from Keras: (none yet|3\.\d+|see)\b", docstring), file
