"""Ray Data runs the batches of `predict` and `embed` on the nodes of a cluster.

    batches, in order ──► Ray Data: one actor per GPU, or per node ──► results, in order

Each actor loads the model once. Ray schedules, spills, and runs again what a node that is gone had.
A batch is made here and is one row of Ray's, which it does not divide: what stands in the same
batch decides the last digits of an answer, so that the answers are those of one process.
"""

import logging
import os
import pickle
import re
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import keras

from keras_vit import load
from keras_vit._base.errors import printable
from keras_vit._base.version import __version__, install_command
from keras_vit.curation.embedding import Elsewhere, Encoded, Request, encode_ahead
from keras_vit.curation.photo_encoder import Encoder
from keras_vit.curation.photo_sources import Photo, PhotoList
from keras_vit.data.decode.image_kinds import PILLOW, is_hidden, suffixes_of
from keras_vit.data.sources.other_formats import note_left_out
from keras_vit.evaluation.answer_row import name_of
from keras_vit.evaluation.prediction import Answer, Batch, answer_batch
from keras_vit.models.scoring import scoring_model
from keras_vit.weights.containers.checkpoint_file import file_in_folder, holds_weights
from keras_vit_cli.exit_status import message_of
from keras_vit_cli.model_files import open_classifier, sum_of_files, with_decoder
from keras_vit_cli.options.photo_options import EmbedOptions
from keras_vit_cli.options.predict import PredictOptions
from keras_vit_cli.options.shared import bucket
from keras_vit_cli.predict.image_paths import image_paths

# Rows of Ray's are sent in blocks; more of them balance better, and take longer to send.
BLOCKS_PER_ACTOR = 32
# The result of a batch, and the files of it that cannot be read.
Result = tuple[Any, list[Path]]


def paths_for_ray(words: Iterable[Path], left_out: Counter[str]) -> Iterator[Path]:
    """Return the files that words mean, as `image_paths` does, those of buckets among them."""
    parts = [
        image_paths([word], left_out) if bucket(word) is None else _in_bucket(word, left_out)
        for word in words
    ]
    return (path for part in parts for path in part)


def photos_for_ray(word: Path) -> Path | PhotoList:
    """Return what `embed` takes for a word: a folder or a table, or the images of a bucket."""
    if bucket(word) is None:
        return word
    left_out: Counter[str] = Counter()
    images = _in_bucket(word, left_out)
    is_folder = word not in images
    root = word if is_folder else word.parent
    known = {
        path.relative_to(root).as_posix(): (info.size, info.mtime_ns)
        for path, info in images.items()
    }
    photos = [Photo(name, None, None) for name in sorted(known)]
    return PhotoList(root, lambda: iter(photos), is_folder, left_out, known)


def name_for_ray(path: Path) -> str:
    """Return a file as rows have it; one in a bucket by its address."""
    return name_of(bucket(path) or path)


def predict_on_ray(options: PredictOptions) -> Callable[..., Iterator[Any]]:
    """Return `elsewhere` of `predict_files`: the answers of the nodes of a cluster.

    Raises:
        ConnectionError: There is no cluster at `options.ray`.
    """
    settings = options.decoder, options.views, options.max_pixels
    run = _connected(options.ray, options.model, _predictor, settings)

    def elsewhere(batches: Iterator[Batch]) -> Iterator[Iterator[Answer]]:
        made = list(batches)
        there = [([_absolute(path) for path in paths], size) for paths, size in made]
        for (paths, _), answers in zip(made, run(there), strict=True):
            yield zip(paths, answers, strict=True)

    return elsewhere


def embed_on_ray(options: EmbedOptions) -> Elsewhere:
    """Return `elsewhere` of `keras_vit.curation.embed`; errors are those of `predict_on_ray`."""
    settings = options.decoder, options.layer, options.pooling, options.batch_size
    run = _connected(options.ray, options.model, _encoder, (*settings, options.max_pixels))

    def elsewhere(batches: Iterator[list[Request]]) -> Iterator[list[Encoded]]:
        return run([[(_absolute(path), known) for path, known in batch] for batch in batches])

    return elsewhere


def _predictor(
    model: str, decoder: str | None, views: str | None, max_pixels: int
) -> Callable[[Batch], Result]:
    """Load a model in an actor, and return what answers a batch."""
    opened = open_classifier(model, decoder, views, several=True)
    answered = partial(answer_batch, opened, scoring_model(opened), max_pixels)

    def predict(batch: Batch) -> Result:
        paths, size = batch
        with _fetched(paths) as local:
            answers = [answer for _, answer in answered((local, size))]
        return answers, [p for p, a in zip(paths, answers, strict=True) if isinstance(a, str)]

    return predict


def _encoder(model: str, decoder: str | None, *settings: Any) -> Callable[[list[Request]], Result]:
    """Load a model in an actor, and return what encodes a batch."""
    encoder = Encoder(with_decoder(load(model), decoder), *settings)

    def encode(batch: list[Request]) -> Result:
        with _fetched([path for path, _ in batch]) as local:
            requests = [(path, known) for path, (_, known) in zip(local, batch, strict=True)]
            (encoded,) = encode_ahead(encoder, [requests])
        failed = [path for (path, _), e in zip(batch, encoded, strict=True) if e.error is not None]
        return encoded, failed

    return encode


class Actor:
    """What runs on a node: the model is loaded for the first batch, and errors are results."""

    def __init__(self, make: Callable[..., Any], model: str, settings: Any, made_by: Any) -> None:
        self.make, self.model, self.settings, self.made_by = make, model, settings, made_by
        self.run: Callable[[Any], Result] | None = None

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        node = socket.gethostname()
        try:
            if self.run is None:
                here = __version__, _sum_of(self.model)
                if here != self.made_by:
                    raise ValueError(
                        f"keras_vit {here[0]} and the model {self.model}, sum {here[1]}, are not "
                        f"those of the command: {self.made_by[0]}, sum {self.made_by[1]}"
                    )
                self.run = self.make(self.model, *self.settings)
            result, failed = self.run(pickle.loads(row["batch"]))
            # Those in a bucket are missing for all.
            missing = [p for p in failed if bucket(p) is None and not os.path.lexists(p)]
            return {"result": pickle.dumps((node, result, missing, None))}
        except Exception as error:
            return {"result": pickle.dumps((node, None, [], message_of(error)))}


def _connected(
    address: str | None, model: Path, make: Callable[..., Any], settings: tuple[Any, ...]
) -> Callable[[list[Any]], Iterator[Any]]:
    """Connect to a cluster, and return what runs batches there."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors come as exceptions
    ray, _ = import_module("ray"), import_module("ray.data")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    if not ray.is_initialized():
        host, _, port = (address or "").rpartition(":")
        try:
            if host:  # Ray itself tries for many minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(
                address or None,
                runtime_env={"env_vars": {"KERAS_BACKEND": keras.backend.backend()}},
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:
            raise ConnectionError(
                f"There is no Ray cluster at {printable(address or 'this machine')}: "
                f"{_last_line(error)} Give the address that `ray start --head` prints, such as "
                "10.0.0.1:6379; auto for that of this machine; or --ray alone."
            ) from error
    place = os.path.abspath(model) if model.exists() else str(model)
    return partial(_results, make, (place, settings, (__version__, _sum_of(place))))


def _results(make: Callable[..., Any], arguments: tuple[Any, ...], batches: list[Any]) -> Any:
    """Yield the result of each batch, in order."""
    ray, data = import_module("ray"), import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    resources, actors = _per_actor(ray)
    rows = [{"batch": pickle.dumps(batch)} for batch in batches]
    try:
        if not rows:  # which Ray does not take
            return
        blocks = min(len(rows), BLOCKS_PER_ACTOR * actors)
        mapped = data.from_items(rows, override_num_blocks=blocks).map(
            Actor,
            fn_constructor_args=(make, *arguments),
            compute=data.ActorPoolStrategy(min_size=1),
            **resources,
        )
        for row in mapped.iter_rows():
            node, result, missing, error = pickle.loads(row["result"])
            if error is not None:
                raise RuntimeError(f"The node {printable(node)} of Ray's cluster stopped: {error}")
            for path in filter(os.path.lexists, missing):
                raise FileNotFoundError(
                    f"The node {printable(node)} does not see {printable(path)}, which is here. "
                    "Give images that every node sees under the same path, or in a bucket."
                )
            yield result
    except ray.exceptions.RayError as error:
        raise RuntimeError(
            f"Ray could not go on: {_last_line(error)} Each node needs the same packages: "
            f"{install_command('ray')}"
        ) from error
    finally:
        ray.shutdown()


def _per_actor(ray: Any) -> tuple[dict[str, int], int]:
    """Return what an actor takes, a GPU or all processors of a node, and how many there can be."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if gpus := sum(int(node.get("GPU", 0)) for node in nodes):
        return {"num_gpus": 1}, gpus
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1] or [1]
    each = min(processors)
    return {"num_cpus": each}, sum(number // each for number in processors)


@cache
def _storage(address: str) -> tuple[Any, str]:
    return import_module("pyarrow.fs").FileSystem.from_uri(address)  # type: ignore[no-any-return]


def _located(uri: str) -> tuple[Any, str]:
    """Return the storage that an address is in, and the path there, whose characters are kept."""
    scheme, _, rest = uri.partition("://")
    place, _, name = rest.partition("/")
    filesystem, root = _storage(f"{scheme}://{place}")
    return filesystem, f"{root.rstrip('/')}/{name}".rstrip("/")


def _in_bucket(word: Path, left_out: Counter[str]) -> dict[Path, Any]:
    """Return the images at an address such as s3://BUCKET/FOLDER, sorted, with what is known."""
    fs, uri = import_module("pyarrow.fs"), str(bucket(word))
    try:
        filesystem, name = _located(uri)
        info = filesystem.get_file_info(name)
        folder = fs.FileSelector(name, recursive=True)
        inside = filesystem.get_file_info(folder) if info.type == fs.FileType.Directory else [info]
    except Exception as error:
        raise ValueError(f"{printable(uri)} cannot be listed: {_last_line(error)}") from error
    files = {each.path: each for each in inside if each.type == fs.FileType.File}
    images, suffixes = dict[Path, Any](), suffixes_of(PILLOW)
    for path in sorted(files):
        if any(map(is_hidden, path.removeprefix(name).split("/"))):
            continue
        if Path(path).suffix.lower() in suffixes:
            images[Path(uri + path.removeprefix(name))] = files[path]
        else:
            note_left_out(Path(path), left_out)
    if not images:
        raise ValueError(f"No image is at {printable(uri)}. Give one with {', '.join(suffixes)}.")
    return images


@contextmanager
def _fetched(paths: list[Path]) -> Iterator[list[Path]]:
    """Copy the files of buckets to this node for a while; one that is missing stays missing."""
    with tempfile.TemporaryDirectory() as folder:
        local = []
        for i, path in enumerate(paths):
            if (uri := bucket(path)) is not None:
                path = Path(folder, str(i)).with_suffix(path.suffix)
                filesystem, name = _located(uri)
                try:
                    with filesystem.open_input_stream(name) as stream:
                        path.write_bytes(stream.read())
                except FileNotFoundError:
                    pass
            local.append(path)
        yield local


def _absolute(path: Path) -> Path:
    return path if bucket(path) else Path(os.path.abspath(path))


def _sum_of(model: str) -> str:
    """Return the beginning of the sum of a model's files; "none" of released weights."""
    if not os.path.exists(model):
        return "none"
    # Of a run what is loaded: answers may be written into its folder meanwhile.
    path = Path(model)
    file = file_in_folder(path) if path.is_dir() and holds_weights(path) else path
    return sum_of_files(file if file.suffix == ".keras" else path)[:12]


def _last_line(error: Exception) -> str:
    lines = re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip().splitlines() or [repr(error)]
    return f"{printable(lines[-1].strip()).removesuffix('.')}."
