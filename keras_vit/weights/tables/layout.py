"""How other packages name and shape the tensors of a model, as tables.

Between all layouts stands one set of names and shapes, the canonical one: see `variables.py`, and
the table in docs/extending.md.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from keras_vit.data.eval_transform import EvalTransform
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.tensors import Array, Tensor, parts_of

Tensors = dict[str, Tensor]


class Codec(NamedTuple):
    """Converts between a file's shape and the canonical one; `write` takes the number of heads."""

    read: Callable[[Array], Array]
    write: Callable[[Array, int], Array]


SAME = Codec(lambda x: x, lambda x, _: x)
LINEAR = Codec(lambda x: x.T, lambda x, _: x.T)  # torch: (outputs, inputs)
CONV = Codec(lambda x: x.transpose(2, 3, 1, 0), lambda x, _: x.transpose(3, 2, 0, 1))  # torch: OIHW
# transformers' CLIP has neither the batch's axis nor, for one token, that of tokens.
BATCH = Codec(lambda x: x[None], lambda x, _: x[0])
TOKEN = Codec(lambda x: x[None, None], lambda x, _: x[0, 0])
# flax keeps the heads apart: (inputs, heads, head_dim), (heads, head_dim), (heads, head_dim, out)
TO_HEADS = Codec(
    lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2]),
    lambda x, heads: x.reshape(x.shape[0], heads, -1),
)
HEADS_BIAS = Codec(
    lambda x: x.reshape(x.shape[0] * x.shape[1]), lambda x, heads: x.reshape(heads, -1)
)
FROM_HEADS = Codec(
    lambda x: x.reshape(x.shape[0] * x.shape[1], x.shape[2]),
    lambda x, heads: x.reshape(heads, -1, x.shape[-1]),
)

# Biases that an option of timm and transformers leaves out of all blocks.
NO_BIASES = tuple(rf"block_\d+/{name}/bias" for name in ("query", "value"))

NO_BIASES_AT_ALL = (*NO_BIASES, r"block_\d+/key/bias")

# The name in the file, the canonical tensors that are concatenated in it, and their shape.
Row = tuple[str, tuple[str, ...], Codec]


@dataclass(frozen=True)
class SourceConventions:
    """What the authors of a layout compute that no tensor shows.

    Attributes:
        normalization: The mean and standard deviation of pixels, as of `ModelConfig`.
        resampling: The rule that resamples position embeddings, a key of
            `keras_vit.weights.resampling.RULES`.
    """

    activation: str
    norm_epsilon: float
    normalization: str
    resampling: str
    eval_transform: EvalTransform = field(default_factory=EvalTransform)


@dataclass(frozen=True)
class Checkpoint:
    """A file's tensors under canonical names, and what the file states beyond them.

    Attributes:
        layout, family, conventions, has_class_position: See `Layout`.
        arguments: Arguments of the model that the file states, such as `num_heads`.
        ignored: Tensors that are not weights of this model, such as an optimizer's state.
        class_names: Of the classifier, where the file has them.
        grid: Rows and columns of the position embeddings, where the file has them.
        zeros, is_head: See `Layout`.
    """

    layout: str
    family: str
    conventions: SourceConventions
    tensors: Tensors
    has_class_position: bool | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[Tensor, ...] = ()
    class_names: tuple[str, ...] | None = None
    grid: tuple[int, int] | None = None
    zeros: tuple[str, ...] = ()
    is_head: bool = False

    @property
    def stated(self) -> dict[str, Any]:
        """Arguments that no shape shows: the file's own, or else its authors' conventions."""
        return {**vars(self.conventions), **self.arguments}


@dataclass(frozen=True)
class Layout:
    """One layout as tables.

    Attributes:
        name: As in `save_weights(layout=...)`.
        suffix: Of the files it is written to.
        conventions: Those of its authors.
        signature: A name that only this layout has, as a regular expression.
        absent: A name that another layout with this signature has; empty for none.
        rows: The tensors outside the blocks.
        block: What comes before a tensor's name in block `{}`.
        block_rows: The tensors of one block.
        unit: What comes before a tensor's name in stage `{}`, unit `{}` of a ResNet; or empty.
        unit_rows: The tensors of one unit.
        family: What it holds the weights of, a key of `conventions.STORED_FAMILIES`.
        prefix: Before every name in written files, except those of `unprefixed`.
        unprefixed: Names without the prefix.
        renames: Other spellings, `(regular expression, replacement)`, undone before reading.
        ignored: Names of tensors that are not weights of the model.
        refused: Names of tensors that this package does not have a layer for, and why.
        prepare: Splits a file into `(tensors by the table's names, ignored)`.
        arguments: What the prepared tensors show of the model beyond canonical shapes.
        has_class_position: Whether the position embeddings begin with the class token's; None:
            unknown.
        positions_first: Whether positions are added before the class token joins, which then does
            not have one.
        zeros: Canonical names, as regular expressions, of weights that are zeros where none of a
            file's tensors has such a name.
        drops_zeros: Whether they are left out of written files, where all are zeros; as they are in
            any case where keys do not have a bias.
        gated: Other spellings in a file whose MLPs are gated, as `renames`, but for writing.
        complete: Adds to the canonical values of a model what else is in written files.
        is_head: Whether files have a head alone, beside which the encoder stays as it is.
    """

    name: str
    suffix: str
    conventions: SourceConventions
    signature: str
    rows: tuple[Row, ...]
    block: str = ""
    block_rows: tuple[Row, ...] = ()
    unit: str = ""
    unit_rows: tuple[Row, ...] = ()
    family: str = "vit"
    prefix: str = ""
    unprefixed: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Tensors], tuple[Tensors, Tensors]] = lambda tensors: (tensors, {})
    arguments: Callable[[Tensors], dict[str, Any]] = lambda tensors: {}
    has_class_position: Callable[[Tensors], bool | None] = lambda tensors: None
    positions_first: bool = False
    zeros: tuple[str, ...] = ()
    drops_zeros: bool = False
    gated: tuple[tuple[str, str], ...] = ()
    absent: str = ""
    complete: Callable[[Mapping[str, Array], Any], Mapping[str, Array]] = lambda values, _: values
    is_head: bool = False

    def recognizes(self, tensors: Tensors) -> bool:
        """Return whether the names are this layout's."""
        names = list(self._renamed(tensors))
        if self.absent and any(re.search(self.absent, name) for name in names):
            return False
        return any(re.search(self.signature, name) for name in names)

    def to_canonical(self, tensors: Tensors) -> Checkpoint:
        """Return the tensors under canonical names, unread; a CheckpointError for unknown ones."""
        tensors, ignored = self.prepare(self._renamed(tensors))
        canonical: Tensors = {}
        for name, tensor in tensors.items():
            if any(re.search(pattern, name) for pattern in self.ignored):
                ignored[name] = tensor
                continue
            names, codec = self._canonical_names(name, tensor)
            canonical.update(parts_of(tensor.then(codec.read), names))
        return Checkpoint(
            self.name,
            self.family,
            self.conventions,
            _gates_joined(canonical),
            self.has_class_position(tensors),
            self.arguments(tensors),
            tuple(ignored.values()),
            zeros=self.zeros,
            is_head=self.is_head,
        )

    def from_canonical(
        self, tensors: Mapping[str, Array], num_heads: int
    ) -> Iterator[tuple[str, Array]]:
        """Yield the layout's names and arrays; a CheckpointError for tensors it cannot hold."""
        if self.is_head and "head_norm/scale" in tensors:
            tensors = {n: x for n, x in tensors.items() if n.startswith("head")}
        is_gated = _is_gated(tensors, "block_0")
        if any("mlp/value/kernel" in parts for _, parts, _ in self.block_rows):
            tensors = _gates_split(tensors)
        without_keys = not any(name.endswith("/key/bias") for name in tensors)
        for pattern in self.zeros if self.drops_zeros or without_keys else ():
            matching = {name for name in tensors if re.fullmatch(pattern, name)}
            if not any(np.any(tensors[name]) for name in matching):
                tensors = {n: x for n, x in tensors.items() if n not in matching}
        tables = [("", "", self.rows)]
        for template, canonical, rows in self._repeated:
            matches = map(_numbered(canonical).match, tensors)
            numbers = sorted({tuple(map(int, match.groups()[:-1])) for match in matches if match})
            tables += [(template.format(*n), canonical.format(*n), rows) for n in numbers]
        placed, unplaced = [], set(tensors)
        for file_prefix, prefix, rows in tables:
            for row, parts, codec in rows:
                names = [prefix + part for part in parts]
                if unplaced.issuperset(names):  # of two rows for the same tensors, the first
                    placed.append((row, file_prefix + row, names, codec))
                    unplaced -= set(names)
        if unplaced:
            name = min(unplaced)
            raise CheckpointError(
                f"The {self.name!r} layout cannot hold {name!r} of this model"
                f"{f' and {len(unplaced) - 1} more' if len(unplaced) > 1 else ''}. "
                "Save it in another layout, or with model.save as .keras, which holds everything."
            )
        for row, whole_name, names, codec in placed:
            values = [tensors[name] for name in names]
            whole = values[0] if len(values) == 1 else np.concatenate(values, axis=-1)
            prefix = "" if row in self.unprefixed else self.prefix
            for pattern, replacement in self.gated if is_gated else ():
                whole_name = re.sub(pattern, replacement, whole_name)
            yield prefix + whole_name, np.ascontiguousarray(codec.write(whole, num_heads))

    def _renamed(self, tensors: Tensors) -> Tensors:
        """Return the tensors under the spelling of the tables."""
        renamed: Tensors = {}
        for name, tensor in tensors.items():
            for pattern, replacement in self.renames:
                name = re.sub(pattern, replacement, name)
            if name in renamed:
                raise CheckpointError(
                    f"Tensors {renamed[name].name!r} and {tensor.name!r} both mean {name!r}."
                )
            renamed[name] = tensor
        return renamed

    def _canonical_names(self, name: str, tensor: Tensor) -> tuple[list[str], Codec]:
        for pattern, reason in self.refused.items():
            if re.search(pattern, name):
                raise CheckpointError(f"Tensor {tensor.name!r} is not supported: {reason}")
        prefix, rest, rows = "", name, self.rows
        for template, canonical, table in self._repeated:
            if match := _numbered(template).fullmatch(name):
                *numbers, rest = match.groups()
                prefix, rows = canonical.format(*map(int, numbers)), table
        for row, parts, codec in rows:
            if row == rest:
                return [prefix + part for part in parts], codec
        raise CheckpointError(
            f"Tensor {tensor.name!r} is not part of the {self.name!r} layout: the file is of "
            "another model, or of a training that added parts."
        )

    @property
    def _repeated(self) -> list[tuple[str, str, tuple[Row, ...]]]:
        """The prefixes of repeated parts, in the file and canonical, with their rows."""
        blocks = (self.block, "block_{}/", self.block_rows)
        units = (self.unit, "stage_{}/unit_{}/", self.unit_rows)
        return [part for part in (blocks, units) if part[0]]


@cache
def _numbered(template: str) -> re.Pattern[str]:
    """Matches a name that begins like the template: its numbers, and the rest of the name."""
    literal = re.split(r"\{.*?\}", template)
    return re.compile(r"(\d{1,4})".join(map(re.escape, literal)) + "(.+)")


def _gates_joined(tensors: Tensors) -> Tensors:
    """Join the tensors `mlp/gate` and `mlp/value` of gated MLPs into one, side by side."""
    joined: Tensors = {}
    for name, tensor in tensors.items():
        gate = tensors.get(name.replace("/mlp/value/", "/mlp/gate/"))
        if "/mlp/value/" in name and gate is not None:
            shape = (*tensor.shape[:-1], gate.shape[-1] + tensor.shape[-1])
            read = partial(lambda *two: np.concatenate([t.read() for t in two], -1), gate, tensor)
            tensor = Tensor(f"{gate.name} and {tensor.name}", shape, tensor.dtype, read)
        if "/mlp/gate/" not in name:
            joined[name.replace("/mlp/value/", "/mlp/dense_0/")] = tensor
        elif name.replace("/mlp/gate/", "/mlp/value/") not in tensors:
            raise CheckpointError(f"Tensor {tensor.name!r} gates a tensor that is not in the file.")
    return joined


def _is_gated(tensors: Mapping[str, Array], block: str) -> bool:
    """Return whether the first layer of a block's MLP is twice as wide as the second one takes."""
    first, second = (tensors.get(f"{block}/mlp/dense_{i}/kernel") for i in (0, 1))
    return first is not None and second is not None and first.shape[-1] == 2 * second.shape[0]


def _gates_split(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Split the joined tensors of gated MLPs into `mlp/gate` and `mlp/value` again."""
    split: dict[str, Array] = {}
    for name, values in tensors.items():
        block, _, part = name.partition("/mlp/dense_0/")
        if not part:
            split[name] = values
            continue
        if not _is_gated(tensors, block):
            split[name] = values
            continue
        gate, value = np.split(values, 2, axis=-1)
        split |= {f"{block}/mlp/gate/{part}": gate, f"{block}/mlp/value/{part}": value}
    return split


def dinov3_arguments(width: int) -> dict[str, Any]:
    """Return what no DINOv3 tensor shows: rotary positions, and heads (of 64, mostly)."""
    return {"rotary": "dinov3", "num_heads": 32 if width == 4096 else max(width // 64, 1)}


def weight_and_bias(
    layer: str, canonical: str | tuple[str, ...], kernel: Codec = LINEAR
) -> tuple[Row, Row]:
    """Return the two rows of a torch layer: `weight` and `bias`."""
    names = (canonical,) if isinstance(canonical, str) else canonical
    return (
        (f"{layer}.weight", tuple(f"{n}/kernel" for n in names), kernel),
        (f"{layer}.bias", tuple(f"{n}/bias" for n in names), SAME),
    )


def torch_norm(layer: str, canonical: str) -> tuple[Row, Row]:
    """Return the two rows of a torch layer norm."""
    return (
        (f"{layer}.weight", (f"{canonical}/scale",), SAME),
        (f"{layer}.bias", (f"{canonical}/bias",), SAME),
    )
