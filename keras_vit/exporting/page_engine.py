"""The engine of a page, ONNX Runtime Web: two files of its npm package, known by their sums."""

import hashlib
import os
import tarfile
import urllib.request
from pathlib import Path

from keras_vit._base.errors import printable
from keras_vit._base.files import atomic_write, cache_folder

VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
# The build without threads' headers, WebGPU or WebGL: the module in one piece, and what it runs.
ENGINE, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
SUMS = {
    ENGINE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
# A mirror of npm that has files one by one: of the package's 33 MB these are 14.
URL = "https://cdn.jsdelivr.net/npm/{package}/dist/{name}"
MOST_BYTES = 64 * 2**20
_OTHERWISE = (
    f"Where there is npm, `npm pack {PACKAGE}` writes the package as a .tgz file: give that as "
    "runtime=FILE."
)


def engine_files(package: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """Return the files of the engine by name, of a package or of Keras's cache.

    Args:
        package: The npm package, a .tgz file; None for the cache, into which the files are
            downloaded once.

    Raises:
        FileNotFoundError: They can be neither found nor downloaded.
        ValueError: The package is damaged, or another version.
    """
    if package is not None:
        files = _packed(Path(package))
    else:
        folder = engine_folder()
        files = {name: _cached(folder / name) for name in SUMS}
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != SUMS[name]:
            place = package if package is not None else engine_folder() / name
            raise ValueError(
                f"{printable(place)} is damaged, or not of {PACKAGE}: the sum of {name} differs. "
                + (_OTHERWISE if package is not None else "Delete it, and export again.")
            )
    return files


def engine_folder() -> Path:
    """Return the folder of the engine's files in Keras's cache."""
    return cache_folder() / f"onnxruntime-web-{VERSION}"


def _packed(path: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            members = {name: archive.getmember(f"package/dist/{name}") for name in SUMS}
            if any(not m.isfile() or m.size > MOST_BYTES for m in members.values()):
                raise KeyError(path)
            return {name: archive.extractfile(m).read() for name, m in members.items()}  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise ValueError(
            f"{printable(path)} is not the npm package {PACKAGE}. {_OTHERWISE}"
        ) from error


def _cached(path: Path) -> bytes:
    if not path.is_file():
        url = URL.format(package=PACKAGE, name=path.name)
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read(MOST_BYTES)
        except OSError as error:
            raise FileNotFoundError(
                f"A page needs ONNX Runtime Web {VERSION}, and {url} cannot be downloaded "
                f"({error}). {_OTHERWISE}"
            ) from error
        if hashlib.sha256(content).hexdigest() != SUMS[path.name]:
            raise FileNotFoundError(f"{url} came with another sum than it should. {_OTHERWISE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    return path.read_bytes()
