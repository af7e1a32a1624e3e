"""The comparison as a table on the screen, a CSV file and a plot of score against time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from keras_vit._base.errors import printable
from keras_vit._base.figures import new_figure
from keras_vit.curation import FeatureScores
from keras_vit.tasks.scores import Score
from keras_vit_cli.report.contact_sheet import SOFT
from keras_vit_cli.report.description import short_path
from keras_vit_cli.search.result_table import write_csv

TABLE, PLOT = "choice.csv", "choice.png"
_MARKERS = "osD^vP*X"
_PARTS = ("accuracy", "balanced_accuracy", "mean_average_precision")  # shown in per cent
_MOST_LETTERS = 40  # of a name in the plot


@dataclass(frozen=True)
class Choice:
    """Weights up to a layer at an image size: what their features know, and what they cost.

    Attributes:
        weights: As the user gave them.
        name: Of these, as short as no other has it: see `short_names`.
        layer: Whose features these are.
        pooling: What became of its tokens; None for a layer with one vector per image.
        images_per_second: Up to this layer, without decoding, on this machine.
        training_bytes: Estimate for fine-tuning all of it with Adam, per batch of the command's.
    """

    weights: str
    name: str
    image_size: tuple[int, int]
    layer: str
    pooling: str | None
    scores: FeatureScores
    images_per_second: float
    parameters: int
    training_bytes: int
    license: str | None

    @property
    def probe(self) -> Score:
        """The probe's score to compare by, with its interval."""
        return self.scores.probe[self.scores.measure]

    @property
    def knn(self) -> Score:
        """The nearest neighbors' score to compare by, with its interval."""
        return self.scores.knn[self.scores.measure]

    @property
    def size_text(self) -> str:
        """The image size as text: one number for square images."""
        height, width = self.image_size
        return str(height) if height == width else f"{height} x {width}"

    @property
    def layer_text(self) -> str:
        """The layer, and how its tokens are pooled."""
        return f"{self.layer}, {self.pooling}" if self.pooling else self.layer

    @property
    def interval(self) -> str:
        """The interval of the probe's score as text."""
        return self.probe.interval(self._form)

    def shown(self, value: float) -> str:
        """Return a score as text."""
        return f"{value:{self._form}}"

    @property
    def _form(self) -> str:
        return ".1%" if self.scores.measure in _PARTS else ".3f"

    def __str__(self) -> str:
        probe = self.probe
        return (
            f"{self.name}, {self.size_text} pixels, {self.layer_text}: "
            f"{self.scores.measure.replace('_', ' ')} of the probe {self.shown(probe.value)} "
            f"({self.interval}), of k-NN "
            f"{self.shown(self.knn.value)}"
        )


def short_names(weights: Sequence[str]) -> dict[str, str]:
    """Return a name for each of the weights: the shortest end of its path that no other has.

    >>> short_names(["/zoo/a/model.safetensors", "/zoo/b/model.safetensors"]).values()
    dict_values(['a/model.safetensors', 'b/model.safetensors'])
    """
    parts = {each: Path(each).parts for each in weights}
    names = {}
    for each, its in parts.items():
        others = [other for text, other in parts.items() if text != each]
        n = len(Path(short_path(each)).parts)
        while n < len(its) and any(other[-n:] == its[-n:] for other in others):
            n += 1
        names[each] = "/".join(its[-n:])
    return names


def table_of(choices: Sequence[Choice]) -> Table:
    """Return a row per choice, for the screen."""
    measure = choices[0].scores.measure.replace("_", " ")
    count = choices[0].scores.examples
    table = Table(
        caption=f"{measure} of {count:,} images, each answered by all others; memory: estimate for "
        "fine-tuning with Adam",
        caption_justify="left",
    )
    table.add_column("weights", overflow="fold")
    numbers = ("k-NN", "probe", "95 % interval", "images/s", "parameters", "memory")
    for name in ("size", "layer", *numbers):
        table.add_column(name, justify="left" if name == "layer" else "right")
    table.add_column("license")
    for choice in choices:
        probe = choice.probe
        cells = (
            printable(choice.name),
            choice.size_text,
            choice.layer_text,
            choice.shown(choice.knn.value),
            choice.shown(probe.value),
            choice.interval,
            f"{choice.images_per_second:.1f}",
            f"{choice.parameters:,}",
            f"{choice.training_bytes / 2**30:.2f} GiB",
            choice.license or "not known",
        )
        table.add_row(*map(Text, cells))
    return table


def write_table(path: Path, choices: Sequence[Choice]) -> None:
    """Write all scores with their intervals, a row per choice."""
    names = list(choices[0].scores.probe)
    columns = [
        column
        for kind in ("knn", "probe")
        for name in names
        for column in (f"{kind}_{name}", f"{kind}_{name}_low", f"{kind}_{name}_high")
    ]
    head = ("weights", "height", "width", "layer", "pooling", "measure", "images")
    tail = ("penalty", "images_per_second", "parameters", "training_bytes", "license")
    rows = (
        (
            *(choice.weights, *choice.image_size, choice.layer, choice.pooling or ""),
            *(choice.scores.measure, choice.scores.examples),
            *(
                "" if value is None else round(value, 6)
                for scores in (choice.scores.knn, choice.scores.probe)
                for name in names
                for value in scores[name].to_list()
            ),
            *(choice.scores.penalty, round(choice.images_per_second, 2)),
            *(choice.parameters, choice.training_bytes, choice.license or ""),
        )
        for choice in choices
    )
    write_csv(path, (*head, *columns, *tail), rows)


def draw(choices: Sequence[Choice]) -> Any:
    """Return the probe's score against the time per image as a matplotlib Figure.

    A color per weights, a marker per layer; the image size stands beside each dot.
    """
    from matplotlib.ticker import LogFormatter, PercentFormatter

    figure = new_figure(7.6, 5.2)
    axes = figure.subplots()
    weights = list(dict.fromkeys(choice.weights for choice in choices))
    layers = list(dict.fromkeys(choice.layer_text for choice in choices))
    labeled = set()
    for choice in choices:
        probe = choice.probe
        low, high = np.where(np.isfinite(probe[1:]), probe[1:], probe.value)
        name = printable(f"{choice.name}, {choice.layer_text}")
        axes.errorbar(
            1000 / choice.images_per_second,
            probe.value,
            # Rounding must not turn an interval that ends at the score into a negative length.
            np.maximum([[probe.value - low], [high - probe.value]], 0),
            fmt=_MARKERS[layers.index(choice.layer_text) % len(_MARKERS)],
            c=f"C{weights.index(choice.weights) % 10}",
            ecolor=SOFT,
            elinewidth=1.2,
            capsize=3,
            ms=6,
            label=None if name in labeled else _end_of(name),
        )
        labeled.add(name)
        axes.annotate(
            choice.size_text,
            (1000 / choice.images_per_second, probe.value),
            (6, 4),
            textcoords="offset points",
            fontsize=8,
        )
    measure = choices[0].scores.measure
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(LogFormatter())  # 20 in place of 2 times 10 to the power of 1
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    axes.set(xlabel="milliseconds per image, on this machine", ylabel=measure.replace("_", " "))
    if measure in _PARTS:
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_title(
        f"linear probe of {choices[0].scores.examples:,} images, each answered by all others",
        loc="left",
        fontsize=11,
    )
    axes.margins(x=0.15)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", fontsize=8, frameon=False)
    return figure


def _end_of(name: str) -> str:
    """Return the end of a long name: paths differ there."""
    return name if len(name) <= _MOST_LETTERS else f"...{name[3 - _MOST_LETTERS :]}"
