"""On which backends a test runs, and in which command: one table for the whole suite."""

import keras
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
# Where the tests of a folder or file run that run once; the longest beginning counts. Torch builds
# and calls small models fastest; what reads with tf.data or writes SavedModels is TensorFlow's.
HOMES = {
    "": "torch",
    "keras_vit/exporting/": "tensorflow",
    "tests/cli/": "tensorflow",
    "tests/data/": "tensorflow",
    "tests/docs/": "jax",
    "tests/examples/": "tensorflow",
    "tests/exporting/": "tensorflow",
    "tests/distribution/": "jax",
    "tests/test_damage.py": "tensorflow",
    "tests/test_faults.py": "tensorflow",
    "tests/training/test_habits.py": "tensorflow",  # checks must stand outside of traced steps
}
# What runs in `make test-all` alone, beside tests marked `thorough` and those with a browser: the
# beginning of its name, and on which backends. Another backend, or another test, stands for it.
THOROUGH: dict[str, tuple[str, ...]] = {
    "tests/data/test_preprocessing.py::test_commands_read_the_data_of_other": BACKENDS,
    "tests/distribution/test_two_processes.py": BACKENDS,
    "tests/docs/": BACKENDS,
    "tests/examples/": BACKENDS,
    "tests/exporting/test_every_kind.py": BACKENDS,
    "tests/exporting/test_formats.py::test_a_file_averages_over_the_views": BACKENDS,
    "tests/evaluation/test_many_classes.py": BACKENDS,
    "tests/exporting/test_one_preparation.py": ("torch",),
    "tests/exporting/test_tasks.py": ("tensorflow",),
    "tests/inspection/test_attention.py::test_the_blocks_of_the_page": ("tensorflow",),
    "tests/trainer/test_trainer.py::test_xla_compiles_long_calls[BiT": BACKENDS,
    "tests/trainer/test_trainer.py::test_xla_compiles_long_calls[Mixer": BACKENDS,
    "tests/trainer/test_trainer.py::test_xla_compiles_long_calls[hybrid": BACKENDS,
    "tests/trainer/test_trainer.py::test_threads": ("tensorflow", "jax"),
    "tests/test_backends.py::test_files_give_the_same_elsewhere": BACKENDS,
    "tests/test_backends.py::test_without_tensorflow": BACKENDS,
    "tests/test_benchmark": BACKENDS,
    "tests/test_faults.py::test_some_faults": BACKENDS,
    "tests/training/test_distillation.py::test_files_and_configurations": ("tensorflow",),
    "tests/training/test_distillation.py::test_other_tasks_learn_from_a_teacher[numbers": BACKENDS,
    "tests/training/test_distillation.py::test_recipes": ("tensorflow",),
    "tests/training/test_distillation.py::test_the_command": BACKENDS,
    "tests/training/test_recipes.py::test_a_compiled_recipe": ("tensorflow",),
    "tests/training/test_resume.py::test_every_kind_of_optimizer": ("tensorflow",),
}
# What not even `make test-all` runs: `pytest -m slow` alone does, before a release.
SLOW: dict[str, tuple[str, ...]] = {
    "keras_vit/exporting/smallest.py": BACKENDS,
    "tests/cli/test_choose.py::test_a_killed_process": BACKENDS,
    "tests/cli/test_tasks.py::test_train_writes_everything": ("jax",),
    "tests/distribution/test_two_processes.py::test_in_two_processes": ("jax",),
    "tests/distribution/test_two_processes.py::test_on_many_devices": ("tensorflow",),
    "tests/docs/test_guides.py::test_no_page_scrolls_sideways[firefox": BACKENDS,
    "tests/evaluation/test_windows.py::test_a_photograph_of_16": BACKENDS,
    "tests/examples/test_tables.py::test_imbalance": BACKENDS,
    "tests/examples/test_tables.py::test_torchrun": BACKENDS,
    "tests/exporting/test_every_kind.py::test_goes_through_every_format[torch-merging": BACKENDS,
    "tests/exporting/test_formats.py::test_mixed_rounds_the_blocks_between[html": BACKENDS,
    "tests/test_faults.py::test_some_faults[train": BACKENDS,
    "tests/training/test_distillation.py::test_other_tasks_learn_from_a_teacher": ("tensorflow",),
    "tests/training/test_pretraining.py::test_a_killed_visreg": ("tensorflow",),
    "tests/training/test_optimizers.py::test_fit_follows_the_official_training": ("tensorflow",),
}


def is_in(table: dict[str, tuple[str, ...]], item: pytest.Item) -> bool:
    return any(
        item.nodeid.startswith(name) and keras.backend.backend() in backends
        for name, backends in table.items()
    )


def backends_of(item: pytest.Item) -> tuple[str, ...]:
    """The backends on which a test runs: those of its mark, or the home of its file."""
    if item.get_closest_marker("every_backend"):
        return BACKENDS
    if mark := item.get_closest_marker("backends"):
        if not mark.args or not set(mark.args) <= set(BACKENDS):
            raise pytest.UsageError(
                f"{item.nodeid}: backends{mark.args}: name some of {', '.join(BACKENDS)}"
            )
        return tuple(mark.args)
    return (HOMES[max((h for h in HOMES if item.nodeid.startswith(h)), key=len)],)


COLLECTED = pytest.StashKey[list[pytest.Item]]()  # all tests, also those of other backends


def of_this_backend(
    items: list[pytest.Item], homeless: bool
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of this backend, with `homeless` all that run once, and the others."""
    here: list[pytest.Item] = []
    elsewhere: list[pytest.Item] = []
    for item in items:
        is_marked = any(item.get_closest_marker(m) for m in ("every_backend", "backends"))
        is_here = keras.backend.backend() in backends_of(item) or (homeless and not is_marked)
        (here if is_here else elsewhere).append(item)
    return here, elsewhere
