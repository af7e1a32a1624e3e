"""An arrow points one way: imports, those inside functions too, go down the floors of the house."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from importlib import metadata

from docs.tools.house import PICTURE, arrows, budgets, draw, floors, line_counts, modules, room
from keras_vit._base.version import DISTRIBUTION
from tests.conftest import REPOSITORY


def test_every_room_has_a_floor_and_arrows_point_down() -> None:
    assert {room(module) for module in modules()} == set(floors())
    floor = {name: i for i, name in enumerate(floors())}
    back = [
        f"{module}:{line} imports {target}"
        for module, target, line in arrows()
        if room(module) != room(target) and floor[room(module)] > floor[room(target)]
    ]
    assert not back, "\n".join(back)


def test_no_files_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {module: set() for module in modules()}
    for module, target, _ in arrows():
        below[module].add(target)
    TopologicalSorter(below).prepare()  # a CycleError names the circle


def test_the_picture_is_that_of_the_imports() -> None:
    assert PICTURE.read_text("utf-8") == draw(), "run `python -m docs.tools.house`"


def test_no_two_files_have_one_name() -> None:
    """`errors.py` beside `errors.py` in an editor's tabs: which is it?"""
    counts = Counter(file.name for file in modules().values() if file.name != "__init__.py")
    assert [name for name, count in counts.items() if count > 1] == []


# Words of a terminal, but for options of sha256sum, pip, torchrun, XLA, TFDS, gcloud, aws, azcopy
# and hf, and that of examples/to_array_record.py.
OF_OTHERS = (
    "check upgrade nproc-per-node xla_force_host_platform_device_count file_format recursive "
    "repo-type local-dir"
)
COMMAND_LINE = re.compile(
    rf"(?<![\w-])--(?!out NEW|(?:{OF_OTHERS.replace(' ', '|')})\b)[a-z][\w-]*"
    r"|\bkeras-vit [a-z]+|keras_vit_cli"
)


def test_the_library_does_not_speak_of_the_command_line() -> None:
    """It says `cache=100`; `keras_vit_cli.library_words` makes `--cache 100` of that."""
    words = [
        f"{module}:{node.lineno} has {word}"
        for module, file in modules().items()
        if room(module) != "keras_vit_cli"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in COMMAND_LINE.findall(node.value)
    ]
    assert not words, "\n".join(words)


def test_rooms_keep_to_their_budgets() -> None:
    """Growth is a decision: docs/architecture.md says how many lines each room may have."""
    counts, most = line_counts(), budgets()
    assert {n: c for n, c in counts.items() if c > most[n]} == {}, "take away, or say why it grows"
    assert {n: c for n, c in counts.items() if c < most[n] - 150} == {}, "lower these budgets"


PLACES = ("keras_vit/**/*.py", "examples/*.py", "benchmarks/*.py", "*.md", "docs/*.md")
TEXTS = sorted(path for pattern in PLACES for path in REPOSITORY.glob(pattern))
EXTRAS = set(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra"))


def test_nothing_installs_the_other_project() -> None:
    assert len(TEXTS) > 100
    wrong: list[str] = []
    for path in TEXTS:
        text = path.read_text("utf-8")
        wrong += [f"{path}: {other}" for other in ("keras_vit[", "keras-vit[") if other in text]
        groups = re.findall(rf"(?:{DISTRIBUTION}|'\.)\[([a-z,]+)\]", text)
        for call in re.findall(r'install_command\(("[^)]*)\)', text):
            groups.append(",".join(re.findall(r"\w+", call)))
        wrong += [f"{path}: [{group}]" for group in groups if not set(group.split(",")) <= EXTRAS]
    assert not wrong
