"""What an exported file proves itself by: images, the answers of its model, and a tolerance."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.manifest import sha256
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.exporting.agreement import check_files, check_images, decisions_agree, scale_of
from keras_vit.exporting.contract import KEY, Contract, Run
from keras_vit.exporting.format_table import row_of
from keras_vit.models.answers import NOVELTY

# Beside the contract's, in a file's metadata; of a zip archive or a folder, a file.
PROOF = f"{KEY}_proof"
PROOF_FILE = f"{PROOF}.json"
IMAGES = 8
# Numbers that are kept of an answer: of maps and tokens, those of some places.
MOST_VALUES = 4096
MOST_BYTES = 2**26  # of a proof in an archive, whose packed bytes may be few
# How far machines are apart, as a part of the answers' scale, beside twice what the file was off
# when it was written: engines of float32 by 1e-7 to 1e-5, of integers by 1e-3 (wasm, x86).
BETWEEN_MACHINES = {None: 1e-4, "float16": 1e-4, "mixed": 2e-3, "int8": 2e-3}
# Of float32, when it was written: image files that are resized in a graph round otherwise.
MOST_OFF = 1e-2
OF_NOVELTY = 10  # times as much: it is a square


@dataclass(frozen=True)
class Proof:
    """Images, and the answers of the model that a file was made of.

    Attributes:
        files: Bytes of image files, for files that read such.
        pixels: Further images of the contract's size and dtype.
        expected: By output, the model's answers to `files` and then `pixels`, `as_stored`.
        tolerance: By output, the largest difference, as a part of the answers' scale.
        steady: For each image, whether the file decides as the model did, and is sure enough of it
            for other machines to do so, too.
    """

    files: tuple[bytes, ...]
    pixels: np.ndarray
    expected: Mapping[str, np.ndarray]
    tolerance: Mapping[str, float] = field(default_factory=dict)
    steady: tuple[bool, ...] = ()

    @classmethod
    def of(
        cls, contract: Contract, answer: Callable[[np.ndarray], Mapping[str, np.ndarray]]
    ) -> Proof:
        """Return the images of a contract, with a model's answers to their float32 pixels."""
        files: tuple[bytes, ...] = ()
        largest = 2.1 * math.prod(contract.image_size)  # pixels of those of `check_files`
        if contract.reads_photographs and largest < contract.max_pixels:
            # JPEG files have other pixels by other decoders.
            made = check_files(contract.image_size)
            files = tuple(content for kind, content in made if kind != "JPEG")
        images = check_images(contract.image_size, contract.channels, contract.statistics)
        proof = cls(files, images[: IMAGES - len(files)], {})
        pixels = np.concatenate([*proof.prepared(contract), proof.pixels.astype("float32")])
        expected = {name: as_stored(name, rows, contract) for name, rows in answer(pixels).items()}
        return cls(files, proof.pixels, expected, dict.fromkeys(expected, 0.0), (False,) * IMAGES)

    def prepared(self, contract: Contract) -> list[np.ndarray]:
        """Return the files' pixels `(files, height, width, channels)`, as one batch or none."""
        # Of PNG files every decoder has the same pixels; Pillow is always there.
        transform = replace(contract.evaluation, decoder="pillow")
        size, channels = contract.image_size, contract.channels
        rows = [prepare_contents(f, size, channels, transform=transform) for f in self.files]
        return [np.stack(rows)] if rows else []

    def measured(self, outputs: Mapping[str, np.ndarray], contract: Contract) -> Proof:
        """Return the proof with the tolerance that the answers of the written file call for.

        Raises:
            RuntimeError: They are others than the model's.
        """
        between, tolerance = BETWEEN_MACHINES[contract.quantize], {}
        for name, off in self.differences(outputs, contract).items():
            if off.max() > (np.finfo("float32").max if contract.quantize else MOST_OFF):
                raise RuntimeError(
                    f"its {name} of stored images differ from the model's by {off.max():.2g}"
                )
            tolerance[name] = 2 * float(off.max()) + between * (
                OF_NOVELTY if name == NOVELTY else 1
            )
        steady = np.full(len(outputs[contract.answers[0]]), contract.has_task)
        for head in contract.heads if contract.has_task else ():
            task, answers = head.task, outputs[head.outputs[0]]
            assert task is not None
            step = between * scale_of(head.outputs[0], task, self.expected[head.outputs[0]])
            top = answers == answers.max(-1, keepdims=True)
            others = (answers + step, answers - step, answers + np.where(top, -step, step))
            sure = [decisions_agree(task, answers, other) for other in others]
            steady = np.all([steady, *sure, self.same_decisions(outputs, head)], axis=0)
        return replace(self, tolerance=tolerance, steady=tuple(map(bool, steady)))

    def differences(
        self, outputs: Mapping[str, np.ndarray], contract: Contract
    ) -> dict[str, np.ndarray]:
        """Return by output how far each image's answers are off, as a part of their scale.

        Infinite where they are not finite or of another shape.
        """
        result = {}
        tasks = {head.outputs[0]: head.task for head in contract.heads}
        for name, truth in self.expected.items():
            if outputs[name].shape != truth.shape:
                result[name] = np.full(len(truth), np.inf)
                continue
            off = np.abs(outputs[name] - truth) / scale_of(name, tasks.get(name), truth)
            off = np.where(np.isfinite(off), off, np.inf)
            result[name] = off.reshape(len(off), -1).max(1)
        return result

    def same_decisions(self, outputs: Mapping[str, np.ndarray], contract: Contract) -> np.ndarray:
        """Return where a file has the model's class, labels, grade or numbers, of every head."""
        if contract.tasks:
            return np.all([self.same_decisions(outputs, head) for head in contract.heads], axis=0)
        name, task = contract.outputs[0], contract.task
        if task is None or outputs[name].shape != self.expected[name].shape:
            return np.full(IMAGES, task is None)
        return decisions_agree(task, self.expected[name], outputs[name])

    def to_text(self, rest: str) -> str:
        """JSON in ASCII, sealed with the SHA-256 sum of all else in the file."""
        expected = {k: [_packed(v.astype("float32")), v.shape] for k, v in self.expected.items()}
        values: dict[str, Any] = {
            "files": [base64.b64encode(content).decode() for content in self.files],
            "pixels": _packed(self.pixels),
            "expected": expected,
            "tolerance": dict(self.tolerance),
            "steady": self.steady,
        }
        return json.dumps({**values, "sum": _seal(values, rest)})

    @classmethod
    def from_text(cls, text: str | bytes, contract: Contract, rest: str) -> tuple[Proof, bool]:
        """Return what a file carries, and whether the file is as it was written.

        Raises:
            ValueError: The text is not that of a proof.
        """
        try:
            values = json.loads(text)
            seal = values.pop("sum")
            is_whole = seal == _seal(values, rest)
            files = tuple(base64.b64decode(content) for content in values["files"])
            shape = (IMAGES - len(files), *contract.image_size, contract.channels)
            sizes = {head.outputs[0]: head.answer_shape[-1] for head in contract.heads}
            expected = {}
            for name in (names := (*contract.measured, *contract.features)):
                packed, of = values["expected"][name]
                images = 2 if name in contract.features else IMAGES
                if of[0] != images or math.prod(of) > IMAGES * max(MOST_VALUES, sizes.get(name, 1)):
                    raise ValueError(f"{name} {of} is not of {images} images")
                expected[name] = _unpacked(packed, tuple(map(int, of)), "float32")
            tolerance = {name: float(values["tolerance"][name]) for name in names}
            pixels, steady = _unpacked(values["pixels"], shape, contract.dtype), values["steady"]
            if len(steady) != IMAGES or not all(
                0 <= value < np.inf for value in tolerance.values()
            ):
                raise ValueError(f"tolerance {tolerance}")
            return cls(files, pixels, expected, tolerance, tuple(map(bool, steady))), is_whole
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error) as e:
            raise ValueError(f"its proof is damaged: {e}") from e


def run_proof(
    path: Path,
    contract: Contract,
    proof: Proof,
    run: Run | None = None,
    runner: Callable[..., Run] | None = None,
) -> dict[str, np.ndarray]:
    """Return what a file answers to the images of a proof, in its own engine.

    Args:
        run: What runs pixels of the contract's dtype; None to make it.
        runner: Of another engine, as a format has it; None for the format's own.
    """
    implementation = row_of(contract.format).implementation()
    runner = runner or implementation.runner
    names = [*proof.expected]
    parts = []
    if proof.files:
        if hasattr(implementation, "file_runner"):  # it decodes and resizes them itself
            parts.append(implementation.file_runner(path, names)(proof.files))
        else:
            prepared = runner(path, names, "float32")
            parts += [prepared(batch) for batch in proof.prepared(contract)]
    parts.append((run or runner(path, names, contract.dtype))(proof.pixels))
    joined = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return {name: as_stored(name, rows, contract) for name, rows in zip(names, joined, strict=True)}


def as_stored(name: str, outputs: np.ndarray, contract: Contract) -> np.ndarray:
    """Return an output as a proof has it.

    Of maps and tokens, `(images, places, size)` at evenly spaced places; of features, those of the
    first and the last image: where there are files, the first image is a file, the last never.
    """
    outputs = outputs[[0, -1]] if name in contract.features else outputs
    if outputs.ndim < 3:
        return outputs
    rows = outputs.reshape(len(outputs), -1, outputs.shape[-1])
    places = min(rows.shape[1], max(1, MOST_VALUES // rows.shape[2]))
    return rows[:, np.linspace(0, rows.shape[1] - 1, places).astype(int)]


def add_to_zip(path: Path, text: str, folder: str = "") -> None:
    """Adds a proof as the last file of a zip archive."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{folder}{PROOF_FILE}", text)


def read_from_zip(path: Path) -> tuple[bytes | None, str]:
    """Return the proof in a zip archive, or None, and the sum of all that stands before it."""
    with zipfile.ZipFile(path) as archive:
        info = next((i for i in archive.infolist() if i.filename.endswith(PROOF_FILE)), None)
        if info is None:
            return None, sha256(path, archive.start_dir)
        if info.file_size > MOST_BYTES:
            raise ValueError(f"its proof is damaged: {info.file_size:,} bytes are too many")
        return archive.read(info), sha256(path, info.header_offset)


def _seal(values: Mapping[str, Any], rest: str) -> str:
    return hashlib.sha256(f"{rest} {json.dumps(values)}".encode()).hexdigest()


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def _unpacked(text: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    content = zlib.decompressobj().decompress(base64.b64decode(text), size + 1)
    return np.frombuffer(content, dtype).reshape(shape).copy()  # ValueError: of another size
