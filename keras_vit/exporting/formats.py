"""`export`: checks its arguments and writes all or nothing, in this or another process."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import ops as backend
from keras_vit._base.errors import as_pair, check_positive
from keras_vit._base.files import atomic_write, check_place
from keras_vit._base.output_folder import OutputFolder
from keras_vit.data import MAX_PIXELS
from keras_vit.evaluation.prediction import check_takes_pixels
from keras_vit.exporting import page_file
from keras_vit.exporting.agreement import check_images
from keras_vit.exporting.contract import Contract
from keras_vit.exporting.debug_features import feature_model, feature_tensors
from keras_vit.exporting.exported import read_contract
from keras_vit.exporting.failure import failure_reason
from keras_vit.exporting.format_table import FORMATS, Format, check_format
from keras_vit.exporting.page_engine import engine_files
from keras_vit.exporting.proof import PROOF_FILE, Proof
from keras_vit.exporting.writer_process import (
    CHECK_FILE,
    CONTRACT_FILE,
    MODEL_FILE,
    REASON_FILE,
    write_and_check,
)
from keras_vit.models import ImageModel
from keras_vit.models.answers import NOVELTY, answers_of, unknown_task
from keras_vit.models.normalization import own_statistics
from keras_vit.models.views import mean_of_views
from keras_vit.tasks import Task
from keras_vit.trainer.pixel_ranges import check_pixels

_SAY_IT = 'Say it, such as model.task = keras_vit.tasks.Regression(("weight",)), and export again.'


def export(
    model: ImageModel,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    quantize: str | None = None,
    calibration: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    top_k: int = 5,
    max_pixels: int = MAX_PIXELS,
    runtime: str | os.PathLike[str] | None = None,
    card: Mapping[str, str] | None = None,
    debug: bool = False,
    overwrite: bool = False,
) -> Path:
    """Writes a model as a file that runs without keras_vit.

    Every format takes `images`, uint8 pixels 0..255 `(batch, height, width, channels)` of any
    batch, and returns what the model's task answers. (Where `normalization` is means and standard
    deviations of the model's own, `images` are float32, in the range of the raster files, which the
    graph normalizes, and no signature reads files.)

    | task | outputs |
    |---|---|
    | classification | `probabilities`, float32 `(batch, classes)`; `top_classes` and |
    | | `top_probabilities`, `(batch, top_k)`, the most probable first |
    | multilabel | `probabilities`, float32 `(batch, labels)`; `labels`, int32 `(batch, labels)`, |
    | | 1 from the label's threshold on |
    | regression | `values`, float32 `(batch, numbers)`, in their units |
    | ordinal | `probabilities`, float32 `(batch, grades)`; `grade`, int32 `(batch,)` |
    | segmentation | `probabilities`, float32 `(batch, height, width, classes)`; `classes`, |
    | | int32 `(batch, height, width)` |
    | depth | `depth`, or `inverse_depth` of relative depth, float32 `(batch, height, width, 1)` |
    | none | `outputs`, float32, as the model returns them: features, tokens, or of a head |
    | | with `model.task = None` |
    | several (`combine`) | those of each head, behind its name: `photos_probabilities` |

    A classifier with prediction sets also returns `in_set`, int32 `(batch, classes)`, 1 for the
    classes that the image may be of; a model with a `novelty` returns `novelty`, float32
    `(batch,)`, above 1 for an image unlike those of the training.

    It carries the task, the size and the preparation of photographs, which
    `keras_vit.exporting.load_exported` reads. It is written in float32, whatever the model's dtype
    policy, and run once before it is kept (in its own engine, but for Core ML off a Mac): a file
    that does not predict what the model does is not.

    | format | is | engine |
    |---|---|---|
    | `"tf_saved_model"` | a folder | TensorFlow, TensorFlow Serving |
    | `"onnx"` | a `.onnx` file | ONNX Runtime |
    | `"litert"` | a `.tflite` file | LiteRT, once TensorFlow Lite |
    | `"openvino"` | a folder with `model.xml` and `model.bin` | OpenVINO |
    | `"torch"` | a `.pt2` file | PyTorch |
    | `"executorch"` | a `.pte` file | ExecuTorch, on phones and boards |
    | `"coreml"` | a `.mlpackage` folder | Core ML, on macOS and iOS |
    | `"html"` | a `.html` file, or a folder for a web server | the page itself, in a browser |

    The page opens without a server or a network; a path without a suffix, such as `"flowers"`,
    makes a folder of it, for a web server.

    The SavedModel also takes `contents`, the bytes of JPEG or PNG files, strings `(batch,)`, in its
    signature `serving_default` (of a model of 1 or 3 channels), and resizes `images` of any size.
    Its integers are names, empty for `labels` that are not predicted, and `valid`, bool `(batch,)`,
    is False for a file of another kind, as BMP, GIF and WebP are, or that cannot be decoded: its
    probabilities are 0, its values NaN and its names empty.

    A backend that cannot write a format leaves it to a second process: torch writes `"torch"`,
    `"executorch"` and `"coreml"`, TensorFlow all others.

    Args:
        model: A model of this package, with `include_preprocessing=True`.
        path: What to write: a file with the format's suffix, or a folder, such as
            `saved_models/NAME/VERSION` of TensorFlow Serving and OpenVINO Model Server.
        format: One of the table; None for the one with the suffix of `path`, and a SavedModel in a
            folder.
        quantize: `"int8"` for weights in eight bits: about a third of the size; `"float16"` for
            weights in sixteen, and products in float32; `"mixed"` for int8 in the blocks between
            the first and the last, and float16 elsewhere. Formats `"onnx"` and `"html"`; `"litert"`
            and `"openvino"` do not have mixed, `"executorch"` and `"coreml"` have int8 alone.
        calibration: images `(images, height, width, channels)` as the model is to see them, some
            hundred, of the dtype of `images`. With them OpenVINO quantizes activations, too; the
            others need none.
        class_names: The names of the task; None for those that it has, or numbers.
        image_size: Height and width that images are resized to; None for the model's. Required for
            a model of any size.
        top_k: How many classes to return, best first.
        max_pixels: Height times width that is accepted; a larger image is not `valid`.
        runtime: Of format `"html"`: the npm package of ONNX Runtime Web, a .tgz file; None for
            Keras's cache, into which its files are downloaded once.
        card: Of format `"html"`: lines of the page's model card, such as
            `{"data": "2,250 flowers", "license": "CC BY 4.0"}`.
        debug: Also return the features of the model, block by block, by which
            `keras_vit.exporting.check` names the first block that an engine computes otherwise; for
            a model with one head and one view, in every format but `"html"`.
        overwrite: Replace a model that was exported there; never other files.

    Returns:
        The path.

    Raises:
        ValueError: Neither `model.task` nor the compiled loss says what the outputs mean, the model
            takes normalized pixels or is quantized, names do not match the task, or the image size
            is missing; or the path has the suffix of another format, or is a link, a mount
            point, a home or the working directory; or `runtime` is another package.
        FileNotFoundError: The page's engine cannot be downloaded.
        FileExistsError: Something is there, and `overwrite` is False or it is something else than
            an exported model.
        BlockingIOError: Another process is writing it.
        ImportError: A package that writes or runs the format is not installed.
        RuntimeError: The format cannot hold the model, or predicts something else; the message
            ends with the reason.

    Example:

    >>> import keras_vit, tempfile
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> folder = tempfile.mkdtemp()
    >>> keras_vit.export(model, folder + "/pets/1", class_names=["cat", "dog"]).name
    '1'
    """
    path = Path(path)
    format = format_of_path(path, format)
    row = check_format(format, quantize).at(path)
    check_positive(top_k=top_k, max_pixels=max_pixels)
    check_takes_pixels(model)
    _check_quantization(model)
    if not row.sorts and getattr(model, "token_merging", False):
        raise ValueError(
            f"{row.name} does not have the stable sort of token merging: give "
            "model.with_token_merging(0)."
        )
    heads = _heads(model, class_names)
    task = None if heads else _task(model, class_names)
    if task is not None and task.per_pixel:
        model.eval_transform.check_whole(model.name)
    size = _image_size(model, image_size)
    contract = Contract(
        format=format,
        task=task,
        tasks=heads,
        raw_shape=() if task or heads else _raw_shape(model, size),
        image_size=size,
        channels=model.channels,
        # The file averages over views itself.
        evaluation=replace(model.eval_transform, views=None),
        top_k=min(top_k, task.size) if task else top_k,
        max_pixels=max_pixels,
        quantize=quantize,
        novelty=model.novelty is not None,
        statistics=own_statistics(model),
        seen_images=model.seen_images,
        features=_features(model, format) if debug else (),
    )
    _check_calibration(calibration, contract)
    check_target(path, row, overwrite)
    engine = _page_engine(contract, runtime, card)
    with published(path, row, overwrite) as place:
        _write(model, place, contract, row, calibration)
        if engine:
            page_file.finish(place, path.stem, engine, card or {})
    return path


def _features(model: Any, format: str) -> tuple[str, ...]:
    """Return the names of the features of a debug export."""
    views = model.eval_transform.views or "one"
    if format == "html" or hasattr(model, "heads") or views != "one":
        raise ValueError(
            "debug=True is for another format than 'html', of a model with one head that sees one "
            f"view of an image: format={format!r}, {len(getattr(model, 'heads', (1,)))} heads, "
            f"views={views!r}. Export it without debug, or change these."
        )
    return tuple(feature_tensors(model))


def _page_engine(
    contract: Contract,
    runtime: str | os.PathLike[str] | None,
    card: Mapping[str, str] | None,
) -> dict[str, bytes]:
    """Return the files of a page's engine; none for another format."""
    if contract.format == "html":
        page_file.check_contract(contract)
        return engine_files(runtime)
    for name, value in (("runtime", runtime), ("card", card)):
        if value is not None:
            raise ValueError(f"{name} is for format='html': give that, or leave it out.")
    return {}


def format_of_path(path: Path, name: str | None) -> str:
    """Return the format that is asked for, by name or by the suffix of the path."""
    of_suffix = next((n for n, row in FORMATS.items() if row.suffix == path.suffix.lower()), None)
    if name is None and not of_suffix and path.suffix[1:].isalpha():
        raise ValueError(
            f"path={str(path)!r} does not have the suffix of a format. Accepted: "
            f"{', '.join(row.suffix for row in FORMATS.values() if row.suffix)}; or no suffix, "
            "or format='tf_saved_model', for the folder of a SavedModel."
        )
    if name is None:
        return of_suffix or "tf_saved_model"
    if of_suffix and of_suffix != name:
        raise ValueError(
            f"path={str(path)!r} is one of format={of_suffix!r}, and format={name!r}: leave "
            "format= out, or give another path=."
        )
    return name


@contextmanager
def published(path: Path, row: Format, overwrite: bool) -> Iterator[Path]:
    """Yields where a file or folder is to be written, which then takes its place."""
    check_target(path, row, overwrite)
    if not row.files:
        with atomic_write(path) as temporary:
            yield temporary
        return
    # A server that watches the folder never sees half of it.
    output = _output(path, row)
    with output.opened(overwrite=overwrite) as workspace:
        yield workspace
        output.finish()
        output.publish()


def _output(path: Path, row: Format) -> OutputFolder:
    return OutputFolder(path, row.name, results=row.files, argument="path")


def check_target(path: Path, row: Format, overwrite: bool) -> None:
    """Refuses a path where a file of the user would be lost, before any work."""
    suffix = row.suffix
    if suffix is not None and path.suffix != suffix:
        stem = str(path.parent / path.stem)
        fix = f"give {stem + suffix!r}" + (f", or {stem!r} for a folder" if row.in_folder else "")
        raise ValueError(f"path={str(path)!r} must end in {suffix}: {fix}.")
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise FileExistsError(f"{path} lies in {file}, which is a file: give a path in a folder.")
    if row.files:
        _output(path, row).check(overwrite=overwrite)
        return
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    check_place(path)
    if not path.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{path} exists. Give another path, or overwrite=True.")
    try:
        read_contract(path)
    except (ValueError, OSError) as error:
        raise FileExistsError(
            f"{path} was not exported by this package, and is not replaced: give another path."
        ) from error


def _write(
    model: Any, path: Path, contract: Contract, row: Format, calibration: np.ndarray | None
) -> None:
    """Writes and checks the format, in this process where its backend is this one's."""
    model = _float32(model, contract)
    novel = None if model.novelty is None else model.feature_model("pre_logits")
    heads = getattr(model, "heads", (model,))

    def answer(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = mean_of_views(model).predict(images, verbose=0)
        outputs = outputs if contract.tasks else [outputs]
        if contract.has_task:
            outputs = [answers_of(*each) for each in zip(heads, outputs, strict=True)]
        named = dict(zip(contract.answers, outputs, strict=True))
        if novel is not None:
            named[NOVELTY] = model.novelty.scores(novel.predict(images, verbose=0))
        if contract.features:
            features = feature_model(model).predict(images, verbose=0)
            named |= {name: features[name] for name in contract.features}
        return named

    images = check_images(contract.image_size, contract.channels, contract.statistics)
    arrays: dict[str, Any] = {"images": images, **answer(images.astype("float32"))}
    proof = Proof.of(contract, answer)
    if calibration is not None:
        arrays["calibration"] = calibration
    if contract.format == "tf_saved_model" and backend.is_tensorflow():
        try:
            write_and_check(model, path, contract, proof, arrays)
        except (OSError, MemoryError, ImportError):
            raise
        except Exception as error:  # of Keras, AutoGraph or TensorFlow
            raise _failed(contract, failure_reason(error)) from error
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / MODEL_FILE)
        (folder / CONTRACT_FILE).write_text(contract.to_text(), "utf-8")
        (folder / PROOF_FILE).write_text(proof.to_text(""), "utf-8")
        np.savez(folder / CHECK_FILE, **arrays)
        python, environment = backend.process_on(row.backend)
        command = [*python, "-m", "keras_vit.exporting.writer_process", str(folder), str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise _failed(contract, _reason(folder / REASON_FILE, done))


def _reason(file: Path, process: subprocess.CompletedProcess[str]) -> str:
    """Return what the second process gave as its reason; where it was killed, how it ended."""
    if file.exists():
        return file.read_text("utf-8")
    last = "\n".join(process.stderr.strip().splitlines()[-10:]) or "nothing"
    return f"the process that writes it ended with status {process.returncode}; it printed: {last}"


def _failed(contract: Contract, reason: str) -> RuntimeError:
    return RuntimeError(f"The model is not exported as {contract.format}: {reason}")


def _float32(model: Any, contract: Contract) -> Any:
    """Return the model to write, not compiled: a fixed image size, float32, the contract's task."""
    if None in model.image_size:
        model = model.with_input_shape((*contract.image_size, contract.channels))
    model = model.copy(dtype="float32")
    if contract.task is not None:
        model.task = contract.task
    return model


def _check_quantization(model: ImageModel) -> None:
    modes = {layer.quantization_mode for layer in model._flatten_layers()} - {None}
    if modes:
        raise ValueError(
            f"{model.name} is quantized by Keras ({', '.join(sorted(modes))}), and some engines "
            "run such a file silently wrong. Export the model that it was made from, with "
            "quantize='int8': then the format's own engine quantizes it."
        )


def _check_calibration(calibration: np.ndarray | None, contract: Contract) -> None:
    if calibration is None:
        return
    if contract.quantize != "int8":
        raise ValueError("calibration is for quantize='int8': give that, or leave it out.")
    shape = (*contract.image_size, contract.channels)
    if (
        calibration.dtype != contract.dtype
        or calibration.shape[1:] != shape
        or not len(calibration)
    ):
        raise ValueError(
            f"calibration {calibration.dtype} {calibration.shape} must be {contract.dtype} images "
            f"(images, {', '.join(map(str, shape))})."
        )
    # As bytes, 0..1 would pass.
    check_pixels(calibration.astype("float32"), "calibration", statistics=contract.statistics)


def _heads(model: Any, names: Sequence[str] | None) -> tuple[tuple[str, Task], ...]:
    """Return the names and tasks of a model with several heads; none of a model with one."""
    heads = getattr(model, "heads", ())
    if heads and names:
        raise ValueError(
            f"class_names are of one task, and {model.name} has several heads: name the classes of "
            "each model before they are combined, and leave class_names out."
        )
    return tuple((head.name, head.task) for head in heads)


def _task(model: ImageModel, names: Sequence[str] | None) -> Task | None:
    """Return the task of the file, with these names."""
    if model.is_task_unknown:
        raise ValueError(
            f"{unknown_task(model)} Or model.task = None: the file then returns them as "
            "they are, as `outputs`, and predict and serve refuse it."
        )
    task = model.task
    if task is not None and names:
        if len(names) != task.size:
            raise ValueError(
                f"{len(names)} class_names for {task.kind} of {task.size}: give one for each."
            )
        return task.with_names(names)
    if names and task is None:
        raise ValueError(
            f"class_names are of a task, and {model.name} does not have one. {_SAY_IT}"
        )
    return task


def _raw_shape(model: ImageModel, size: tuple[int, int]) -> tuple[int, ...]:
    shape = model.compute_output_shape((None, *size, model.channels))
    return tuple(int(n) for n in shape[1:])


def _image_size(model: ImageModel, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    if model.data_format != "channels_last":
        raise ValueError("A channels_first model cannot be served. Rebuild it as channels_last.")
    height, width = model.image_size
    if image_size is None:
        if height is None or width is None:
            raise ValueError(
                f"{model.name} takes images of any size, but the SavedModel resizes them to one: "
                "give image_size=224, for example."
            )
        return height, width
    size = as_pair(image_size, "image_size")
    if (height or size[0], width or size[1]) != size:
        raise ValueError(
            f"image_size={image_size!r} does not fit {model.name}, which takes images of "
            f"{height} x {width} pixels. Leave image_size out, or export "
            f"model.with_input_shape({(*size, model.channels)})."
        )
    return size
