"""What a command needs, looked for before Keras is imported: files that are there, and packages."""

import difflib
import glob
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from keras_vit_cli.options.option import escaped, library_version
from keras_vit_cli.options.shared import DATA_HELP, EXPORTED_HELP, bucket

UNFINISHED = ".partial"  # ends the name of a run's folder until it is complete
SIMILAR = 0.7  # of `difflib`, from which on a name may be meant
WEIGHTS_SUFFIXES = (".keras", ".h5", ".safetensors", ".npz", ".pth", ".pt", ".bin", ".json")


class Kind(NamedTuple):
    """What an option names: a noun for the error, and what is accepted."""

    noun: str
    accepted: str


MODEL = Kind(
    "model",
    "a .keras or weights file, the folder of a training run, or MODEL:TAG of released weights, "
    "which keras-vit list --weights prints",
)
WEIGHTS = MODEL._replace(noun="file of weights")
DATA = Kind(
    "folder", f"{DATA_HELP.partition(': ')[2]}; of images in one folder also --labels, their table"
)
PHOTOS = Kind(
    "folder or table",
    "a folder of images, a table of them, for audit their index, or for embed with --ray "
    "s3://BUCKET/FOLDER",
)
TABLE = Kind("table", "a CSV, TSV, JSON lines or Parquet file, with a column of files")
INDEX = Kind("index", "the folder that keras-vit embed wrote")
EXPORTED = Kind("exported file", EXPORTED_HELP)
IMAGES = Kind(
    "image",
    "image files; predict takes folders, patterns, tables and @list.txt as well, and with --ray "
    "s3://BUCKET/FOLDER",
)
DECISIONS = Kind("file of decisions", "the CSV file that the page of keras-vit audit downloads")

# The options of all commands that name what has to be there.
EXISTING = {
    **dict.fromkeys(("model", "models", "among", "teacher", "start"), MODEL),
    **dict.fromkeys(("weights", "source"), WEIGHTS),
    "data": DATA,
    "photos": PHOTOS,
    "labels": TABLE,
    "index": INDEX,
    "file": EXPORTED,
    "files": IMAGES,
    "decisions": DECISIONS,
}
# Of these commands it is something else: a name, or what is written.
OTHERWISE = {
    ("train", "model"),
    ("plan", "model"),
    ("pretrain", "model"),
    ("list", "weights"),
    ("audit", "index"),
    ("label", "index"),
}

# The packages that a command imports at its end, or one of its options, and the extra that has
# them. The backend and what reads the data are looked for where they are chosen.
PLOTS, SEARCH = (("matplotlib",), "plots"), (("sklearn",), "search")
PACKAGES: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(("train", "choose", "inspect", "augment"), PLOTS),
    **dict.fromkeys(("audit", "cluster", "label"), SEARCH),
    "serve": (("uvicorn", "starlette", "python_multipart", "prometheus_client"), "serve"),
}
BY_SUFFIX: dict[str, tuple[tuple[str, ...], str]] = {
    ".parquet": (("pyarrow",), ""),
    **dict.fromkeys((".pth", ".pt", ".pt2", ".bin"), (("torch",), "torch")),
    ".onnx": (("onnx", "onnxruntime"), "onnx"),
    ".pte": (("torch", "executorch"), "executorch"),
    ".tflite": (("ai_edge_litert",), "litert"),
    ".mlpackage": (("coremltools",), "coreml"),
}


def check_needs(options: dict[str, Any]) -> None:
    """Looks for the files and packages of a command, from the options that `parse` returns.

    Raises:
        FileNotFoundError: There is no such file or folder; the message has what is accepted.
        ImportError: A package is not installed that the command would need later.
    """
    for name, value in _paths(options):
        kind = EXISTING[name]
        if kind is not IMAGES:
            _check_path(value, name, options)
    has_ray = options.get("ray") is not None
    words = [value for name, value in _paths(options) if EXISTING[name] is IMAGES]
    if words and not any(_stands_for_images(w) or (has_ray and bucket(w)) for w in words):
        _refuse(words[0], IMAGES)  # one that is missing among others is a row with a reason
    _check_packages(options)


def _paths(options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if name in EXISTING and (options["command"], name) not in OTHERWISE:
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None and (options["command"], str(each)) != ("pretrain", "none"):
                    yield name, str(each)


def _check_path(text: str, name: str, options: dict[str, Any]) -> None:
    kind, path = EXISTING[name], Path(text).expanduser()
    if kind is PHOTOS and (address := bucket(text)) and options.get("ray") is None:
        _refuse(address, kind)
    if kind is MODEL and path.name.endswith(UNFINISHED) and (path / "config.json").is_file():
        _refuse_unfinished(path, text)
    if path.exists() or ":" in text:  # MODEL:TAG, records:FOLDER, gs://BUCKET
        return
    folder = Path(options.get("data") or options.get("photos") or ".").expanduser()
    # A table may lie among its images, and one of each split beside these.
    inside = glob.escape(str(folder))
    places = (os.path.join(inside, part, glob.escape(text)) for part in ("", "*"))
    if kind is TABLE and any(map(glob.glob, places)):
        return
    if kind is WEIGHTS and not (_looks_like_path(text) or (path.suffix and near_paths(path))):
        return
    data_sets = _data_sets(options.get("data_dir")) if kind is DATA else set()
    is_data_set = not _looks_like_path(text) and text.split("/")[0] in data_sets  # "digits/half"
    if is_data_set or (kind is DATA and glob.has_magic(text)):
        return
    if kind is MODEL and (begun := path.with_name(path.name + UNFINISHED)).is_dir():
        _refuse_unfinished(begun, text)
    proposed = near_paths(folder / path) if kind is TABLE else []
    if kind is DATA and not near_paths(path):
        proposed = difflib.get_close_matches(text.lower(), data_sets, n=1)
    _refuse(text, kind, proposed)


def _refuse(text: str, kind: Kind, proposed: Sequence[str] = ()) -> None:
    near = " or ".join([*near_paths(Path(text).expanduser()), *proposed])
    hint = f" Did you mean {escaped(near)}?" if near else ""
    raise FileNotFoundError(
        f"There is no {kind.noun} at {escaped(text)}.{hint} Give {kind.accepted}."
    )


def _refuse_unfinished(folder: Path, text: str) -> None:
    """Raise a FileNotFoundError that says how to continue the unfinished run of a model."""
    try:
        words = shlex.split(json.loads((folder / "config.json").read_text("utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        words = ["keras-vit", "train", "...", "--out", str(folder).removesuffix(UNFINISHED)]
    command = shlex.join([word for word in words if word not in ("--overwrite", "--resume")])
    raise FileNotFoundError(
        f"There is no finished model at {escaped(text)}: its run lies in {escaped(str(folder))}, "
        f"interrupted or still going on. Continue it: {escaped(command)}"
        f"{' --resume' if words[0] == 'keras-vit' else ''}"
    )


def near_paths(path: Path) -> list[str]:
    """Paths that there are, of which the first part that is missing in `path` is similar."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        names = [name for name in os.listdir(missing.parent) if not name.startswith(".")]
    except OSError:
        return []
    near = [
        missing.with_name(n) for n in difflib.get_close_matches(missing.name, names, cutoff=SIMILAR)
    ]
    whole = [other / path.relative_to(missing) for other in near]
    return [str(p) for p in ([p for p in whole if p.exists()] or near)]


def _looks_like_path(text: str) -> bool:
    """Return whether a name is that of a file, and not of released weights or a data set."""
    path = Path(text)
    if text.startswith((".", "~", os.sep)) or text.endswith("/"):
        return True
    is_inside = len(path.parts) > 2 or (len(path.parts) > 1 and path.parent.is_dir())
    return is_inside or path.suffix.lower() in WEIGHTS_SUFFIXES


def _data_sets(data_dir: str | None) -> set[str]:
    """Return data set names: the digits, those of TensorFlow Datasets, and those prepared here.

    To ask that package would take the seconds that are to be saved. It has a file or a folder of
    the name of each that has images with a class (`tfds:NAME` is any other).
    """
    package, prepared = find_spec("tensorflow_datasets"), [data_dir, os.getenv("TFDS_DATA_DIR")]
    names = {"digits"}
    if package is not None and package.origin is not None:
        names |= {path.stem for path in Path(package.origin).parent.glob("*/[!_]*")}
        prepared.append("~/tensorflow_datasets")
    for folder in [Path(one).expanduser() for one in prepared if one is not None]:
        names |= {path.name for path in folder.glob("*") if path.is_dir()}
    return names


def _stands_for_images(word: str) -> bool:
    return (
        word == "-"
        or os.path.lexists(word)
        or glob.has_magic(word)
        or (word.startswith("@") and os.path.lexists(word[1:]))
    )


def _check_packages(options: dict[str, Any]) -> None:
    command = options["command"]
    needed = [PACKAGES[command]] if command in PACKAGES else []
    is_parquet = command == "embed" and options["out"].suffix.lower() == ".parquet"
    if is_parquet or (command == "predict" and options["format"] == "parquet"):
        needed.append(BY_SUFFIX[".parquet"])
    if options.get("ray") is not None:
        needed.append((("ray", "pyarrow"), "ray"))
    if command == "audit" and options["decisions"] is not None:
        needed.clear()
    # Of another engine, the file's own is not needed.
    paths = [] if options.get("engine") else _paths(options)
    suffixes = [Path(text).suffix.lower() for _, text in paths]
    needed += [BY_SUFFIX[suffix] for suffix in suffixes if suffix in BY_SUFFIX]
    for packages, extra in needed:
        for package in packages:
            if find_spec(package) is None:
                command_of = library_version()["install_command"]
                install = command_of(extra) if extra else f"pip install {package}"
                raise ImportError(f"keras-vit {command} needs {package}: {install}", name=package)
