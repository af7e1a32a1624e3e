"""`check`: whether an exported file answers here as the model that it was made of."""

import math
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_vit._base.errors import counted, printable
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.debug_features import NORMALIZED
from keras_vit.exporting.exported import read_contract
from keras_vit.exporting.failure import engine_errors
from keras_vit.exporting.format_table import row_of
from keras_vit.exporting.other_engines import engine_of
from keras_vit.exporting.proof import IMAGES, Proof, run_proof
from keras_vit.weights.checkpoint_error import CheckpointError

# Calls whose median is the time per image, after one that is not counted.
TIMED = 5
# Formats whose engine follows a damaged file's offsets out of its memory, and ends the process.
TRUSTING = ("litert", "executorch", "coreml")


@dataclass(frozen=True)
class Check:
    """What an exported file answers to the images that it carries.

    Attributes:
        name: Of the file or folder.
        contract: What it takes and returns.
        engine: What runs it, with its version.
        files: How many of the images are image files, which it or its contract prepares.
        is_whole: Whether its bytes are those that were written.
        differences: By output, the largest difference from the model's answers, as a part of their
            scale (1 of probabilities); nothing where it was not run, as a LiteRT file is not whose
            bytes are others: the engine would follow them anywhere.
        tolerance: By output, the largest difference that is accepted.
        features: Of a debug export, what `differences` is, of two images, the first a file if there
            are files; in the order of the data.
        flipped: How many of the images have another class, labels, grade or number than in the
            model.
        lost: How many of these the file decided as the model when it was written, and surely.
        seconds: Per image, of single ones; NaN where the engine is not on this system.
    """

    name: str
    contract: Contract
    engine: str
    files: int
    is_whole: bool = False
    differences: Mapping[str, float] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)
    features: Mapping[str, np.ndarray] = field(default_factory=dict)
    flipped: int = 0
    lost: int = 0
    seconds: float = math.nan

    @property
    def problems(self) -> list[str]:
        """What is wrong, a phrase each; nothing where the file answers as its model."""
        problems = [] if self.is_whole else ["its bytes are not those that were written"]
        problems += [
            f"its {name} differ by {off:.2g}, more than {self.tolerance[name]:.2g}"
            for name, off in self.differences.items()
            if not off <= self.tolerance[name]
        ]
        if self.lost:
            problems.append(f"{counted(self.lost, 'image')} changed {self._noun}")
        return problems

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def first_feature(self) -> str | None:
        """The first feature that is not finite, or else out of its tolerance; None if none is."""
        finite = dict.fromkeys(self.features, float(np.finfo("float32").max))
        for most in (finite, self.tolerance):
            for name, off in self.features.items():
                if not off.max() <= most[name]:
                    return name
        return None

    @property
    def _of_features(self) -> str:
        first = self.first_feature
        if first is None:
            return f"{len(self.features)} compared: as the model's"
        off, where = self.features[first], printable(first)
        blocks = [name for name in self.features if name.startswith("block_")]
        if first in blocks:
            where = f"block {blocks.index(first) + 1} of {len(blocks)} ({where})"
        if not np.isfinite(off).all():
            why = "its values are not finite: they overflow in the precision of this engine"
        elif self.files and off[-1] <= self.tolerance[first]:
            why = "of the image file alone: it is decoded, resized or cropped otherwise"
        elif first == NORMALIZED and off.max() > 1e-2:  # bfloat16 rounds by 4e-3
            why = "pixels are normalized otherwise"
        else:
            why = "the engine computes in fewer bits, or weights were changed there"
        return f"{where}: {why}"

    @property
    def _changed(self) -> str:
        return "changed" if self.differences else "changed, so it was not run"

    @property
    def _noun(self) -> str:
        return "answer" if self.contract.task is None else self.contract.task.nouns[0]

    def __str__(self) -> str:
        row = row_of(self.contract.format)
        precision = self.contract.quantize or "float32"
        files = f", {self.files} of them as files" if self.files else ""
        rows = [("bytes", "as they were written" if self.is_whole else self._changed)]
        compared = {**self.differences}
        if is_off := self.first_feature is not None:
            compared |= {name: off.max() for name, off in self.features.items()}
        for name, off in compared.items():
            text = f"largest difference {off:.2g} (at most {self.tolerance[name]:.2g})"
            rows.append((printable(name), text))
        if self.differences and self.contract.has_task:
            rows.append((f"another {self._noun}", f"{self.flipped} of {counted(IMAGES, 'image')}"))
        if self.features:
            rows.append(("the first" if is_off else "features", self._of_features))
        if math.isfinite(self.seconds):
            rows.append(("time per image", f"{1000 * self.seconds:.3g} ms"))
        width = max(20, *(len(name) + 2 for name, _ in rows))
        end = "It answers here as its model." if self.ok else f"Wrong: {'; '.join(self.problems)}."
        if self.ok and not row.runs_here:
            end = "Its program answers as its model. Check it on a Mac, too: Core ML was not tried."
        return "\n".join(
            (
                f"{printable(self.name)}: {row.name}, {precision}, of keras_vit "
                f"{printable(self.contract.version)}, run by {self.engine} on "
                f"{counted(IMAGES, 'image')}{files}",
                *(f"  {name:{width}}{text}" for name, text in rows),
                end,
            )
        )


def check(path: str | os.PathLike[str], engine: str | None = None) -> Check:
    """Runs an exported file on the images that it carries, and compares with its model's answers.

    `keras_vit.export` stores them in every file: image files, which are decoded, resized and
    cropped as in evaluation, and pixels; the answers of the model that was exported; how far the
    file was off when it was written; and the sum of its bytes. The file's own engine runs it,
    without Keras. A flipped bit, a changed description and an engine that computes otherwise are
    found; of a debug export, the first block that differs. (The sum shows damage, not who made the
    file.)

    Args:
        path: A `.onnx`, `.tflite`, `.pt2`, `.pte` or `.html` file, or the folder of a SavedModel,
            of OpenVINO, Core ML or a page, or of transformers or timm that `prove_folder` was
            given. (A package for Core ML is run on a Mac alone; elsewhere coremltools evaluates its
            program.)
        engine: What runs it; None for the format's own. ONNX: `"onnxruntime"`, `"openvino"`,
            `"openvino-bf16"`, its default on processors that have bfloat16, or `"onnx"`, whose
            definitions in NumPy are slow and the standard; LiteRT: `"ai-edge-litert"` or
            `"tensorflow"`; OpenVINO: `"openvino"` or `"openvino-bf16"`.

    Returns:
        What was found; it prints as a table, and `ok` says whether the file answers as its model.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It was not exported by this package, is damaged so that it cannot be run,
            or was written by a version that did not store images; or the engine cannot run it.
        ValueError: The engine does not run the format.
        ImportError: The engine is not installed.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> folder = keras_vit.export(model, tempfile.mkdtemp() + "/1", class_names="ab")
    >>> keras_vit.exporting.check(folder).ok
    True
    """
    path = Path(path)
    contract = read_contract(path)
    row = row_of(contract.format)
    shown, runner = engine_of(contract.format, engine)
    implementation = row.implementation()
    with engine_errors(f"{path} is damaged"):
        text, rest = implementation.read_proof(path)
        if text is None:
            raise CheckpointError(
                f"{path} does not carry images to check it by: keras_vit {contract.version} wrote "
                "it before files did, or they were taken out. Export the model again."
            )
        proof, is_whole = Proof.from_text(text, contract, rest)
    if hasattr(implementation, "engine"):
        shown = implementation.engine(shown)
    if not is_whole and contract.format in TRUSTING:
        return Check(path.resolve().name, contract, shown, files=len(proof.files))
    is_usual = runner is implementation.runner
    with engine_errors(f"{path} is damaged" if is_usual else f"{shown} cannot run {path}"):
        run = runner(path, [*proof.expected], contract.dtype)
        outputs = run_proof(path, contract, proof, run, runner)
        seconds = []
        for _ in range(TIMED + 1 if row.runs_here else 0):
            began = time.perf_counter()
            run(proof.pixels[:1])
            seconds.append(time.perf_counter() - began)
    other, off = ~proof.same_decisions(outputs, contract), proof.differences(outputs, contract)
    return Check(
        name=path.resolve().name,
        contract=contract,
        engine=shown,
        files=len(proof.files),
        is_whole=is_whole,
        differences={name: float(off[name].max()) for name in contract.measured},
        tolerance=proof.tolerance,
        features={name: off[name] for name in contract.features},
        flipped=int(other.sum()),
        lost=int((other & np.array(proof.steady)).sum()),
        seconds=statistics.median(seconds[1:] or [math.nan]),
    )
