"""An arrow points one way: imports, those inside functions too, go down the floors of the house."""

from collections import Counter
from graphlib import TopologicalSorter

from docs.tools.house import PICTURE, arrows, budgets, draw, floors, line_counts, modules, room


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


def test_rooms_keep_to_their_budgets() -> None:
    """Growth is a decision: docs/architecture.md says how many lines each room may have."""
    counts, most = line_counts(), budgets()
    assert {n: c for n, c in counts.items() if c > most[n]} == {}, "take away, or say why it grows"
    assert {n: c for n, c in counts.items() if c < most[n] - 150} == {}, "lower these budgets"
