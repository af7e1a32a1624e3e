"""`Task`: what a model's outputs mean, from the targets it learns from to the answers it gives."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from keras_vit._base.errors import check_arguments, check_choice, listed
from keras_vit.tasks.answer import Answer
from keras_vit.tasks.mirrored import moved_in_mirror, swapped_in_mirror
from keras_vit.tasks.target import Target


@dataclass(frozen=True)
class Task(Target, Answer):
    """What a model's outputs mean; one subclass per kind, listed in `keras_vit.tasks.TASKS`.

    `Target` is what it learns from, `Answer` what it says; here are the names that both share. An
    object is immutable and consists of plain values, so that it is saved in a model's
    configuration and in the metadata of every exported file.

    Attributes:
        names: Of the classes, labels, numbers or grades, in the order of the outputs; empty where
            nobody gave them.
        size: How many there are; follows from `names` where there are names.

    Raises:
        ValueError: There are neither names nor a size, the two differ, or a name occurs twice
            (as names of classes may).
    """

    nouns: ClassVar[tuple[str, str]]  # what one of its names is, what several are
    head: ClassVar[str] = "row"  # how outputs follow from features: a key of `models.head.HEADS`
    fewest: ClassVar[int] = 1
    names_without_output: ClassVar[int] = 0  # grades are one more than the thresholds between them
    most: ClassVar[int] = 2**24  # more than this is a damaged file's
    distinct: ClassVar[bool] = True  # whether no name may occur twice
    # `problem_type` of transformers' configurations; None for its default, one of several classes.
    problem_type: ClassVar[str | None] = None

    names: tuple[str, ...] = ()
    size: int = 0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if isinstance(self.names, str):
            raise ValueError(f'{kind}(names={self.names!r}) is one text: give ("{self.names}",).')
        self._set(names=tuple(map(str, self.names)))
        if self.names and self.size not in (0, len(self.names)):
            raise ValueError(
                f"{kind} has size={self.size} and {len(self.names)} names: {listed(self.names)}. "
                "Leave out the size, or give as many names."
            )
        self._set(size=len(self.names) or self.size)
        if not isinstance(self.size, int) or not self.fewest <= self.size <= self.most:
            raise ValueError(
                f"{kind} with {len(self.names)} names and size={self.size!r}: give at least "
                f"{self.fewest} names, or a size from {self.fewest} to {self.most:,}."
            )
        if self._repeated and self.distinct:
            raise ValueError(f"{kind} has these names more than once: {listed(self._repeated)}.")

    @property
    def changes_in_mirror(self) -> str:
        """What a mirror image shows in place of what it has, by the names; "" where nothing.

        Example:

        >>> from keras_vit.tasks import Classification
        >>> Classification(("left hand", "right hand")).changes_in_mirror
        "'right hand' for 'left hand'"
        """
        return (moved_in_mirror if self.are_numbers else swapped_in_mirror)(self.names)

    def _set(self, **values: Any) -> None:
        """Set fields while the object is made; it is frozen afterwards."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def _repeated(self) -> list[str]:
        return sorted(name for name, count in Counter(self.names).items() if count > 1)

    @property
    def outputs(self) -> int:
        """The width of the model's head."""
        return self.size - self.names_without_output

    @property
    def kind_and_size(self) -> str:
        """The kind of the labels and their number, such as "multilabel of 6" or "10 classes"."""
        return f"{self.kind} of {self.size}"

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names, or `"0"`, `"1"`, ... where nobody gave any."""
        return self.names or tuple(map(str, range(self.size)))

    @property
    def output_names(self) -> tuple[str, ...]:
        """What each output of the head is for, as other packages name it."""
        return self.shown_names

    def with_names(self, names: Sequence[str]) -> Self:
        """Return the same task with other names; none of them for numbers from 0 on.

        Raises:
            ValueError: There are more or fewer than `size`.
        """
        return replace(self, names=tuple(names))

    def unfitted(self) -> Self:
        """Return what of the task labels are read by, without what `fitted` took from others."""
        return type(self)(names=self.names)

    def get_config(self) -> dict[str, Any]:
        """JSON values from which `keras_vit.tasks.get` makes the same task."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {"kind": self.kind, **lists}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the inverse of `get_config`.

        Raises:
            ValueError: The configuration is of another kind, or a value is not accepted.
        """
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
        }
        check_choice(values.pop("kind", cls.kind), "kind", [cls.kind])
        check_arguments(cls, values)
        return cls(**values)
