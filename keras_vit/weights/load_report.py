"""How each tensor was handled (loaded, resized, adapted, initialized, ignored)."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit.weights.containers.tensors import TensorShape

# Lines of each status that are printed: a training's state may have thousands of ignored tensors.
SHOWN = 12
STATUSES = ("loaded", "resized", "adapted", "fresh", "ignored")


@dataclass(frozen=True)
class Entry:
    """One line of the report.

    Attributes:
        status: One of `STATUSES`.
        name: Canonical name of the tensor, or its name in the file when it is ignored.
        source: Its name in the file; None when it is fresh.
        shape: In the model, or in the file when it is ignored.
        detail: By which rule, from which size, or why.
    """

    status: str
    name: str
    source: str | None
    shape: TensorShape
    detail: str = ""


@dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did: every tensor is loaded, resized, adapted, fresh or ignored.

    Prints as a table; `to_json` gives the same for programs.

    Attributes:
        file: The file that was read.
        layout: The layout it is in.
        entries: One `Entry` per tensor.
        notes: What the caller should know, such as an activation that differs from the weights'.
        sha256: SHA-256 sum of the file; empty for one that carries its own, which was compared.

    Example:

    >>> from keras_vit.weights import Entry, LoadReport
    >>> report = LoadReport("ti16.npz", "google", (
    ...     Entry("loaded", "encoder_norm/scale", "Transformer/encoder_norm/scale", (192,)),
    ...     Entry("fresh", "head/kernel", None, (192, 5), "1000 classes in the file, 5 here")))
    >>> report.fresh
    ('head/kernel',)
    """

    file: str
    layout: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    sha256: str = ""

    def named(self, status: str) -> tuple[str, ...]:
        """Return the names of all tensors of one status."""
        return tuple(entry.name for entry in self.entries if entry.status == status)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Tensors taken as they are."""
        return self.named("loaded")

    @property
    def resized(self) -> tuple[str, ...]:
        """Tensors resampled to another size by the rule of the file's authors."""
        return self.named("resized")

    @property
    def adapted(self) -> tuple[str, ...]:
        """Tensors fitted to the model otherwise, such as to other channels."""
        return self.named("adapted")

    @property
    def fresh(self) -> tuple[str, ...]:
        """Weights of the model that nothing in the file was for."""
        return self.named("fresh")

    @property
    def ignored(self) -> tuple[str, ...]:
        """Tensors of the file that the model does not use."""
        return self.named("ignored")

    def to_json(self) -> str:
        """Return the report as JSON: file, layout, counts, entries, notes."""
        counts = {status: len(self.named(status)) for status in STATUSES}
        return json.dumps({**asdict(self), "counts": counts}, indent=1)

    def __str__(self) -> str:
        by_status = {s: [e for e in self.entries if e.status == s] for s in STATUSES}
        summary = ", ".join(f"{len(same)} {status}" for status, same in by_status.items() if same)
        lines = [f"{Path(self.file).name} ({self.layout}): {summary}"]
        shown = [entry for status in STATUSES[1:] for entry in by_status[status][:SHOWN]]
        rows = [(entry, " x ".join(map(str, entry.shape))) for entry in shown]
        name_width = max((len(entry.name) for entry, _ in rows), default=0)
        size_width = max((len(size) for _, size in rows), default=0)
        lines += [
            f"  {e.status:8} {e.name:{name_width}}  {size:{size_width}}  {e.detail}".rstrip()
            for e, size in rows
        ]
        if self.sha256:
            lines.append(f"  sha256   {self.sha256}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(map(printable, lines))
