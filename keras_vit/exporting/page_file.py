"""A page that runs the model in a browser: one HTML file, which needs no network and no server.

Its parts stand in blocks of base64, compressed and with their sums. `write` makes a page without
the engine, which needs TensorFlow; `finish` adds the engine, ONNX Runtime Web, and the card. Where
the path is a folder, for a web server, the large parts are files beside the page.
"""

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from keras_vit._base.errors import printable
from keras_vit._base.manifest import own_files, read_manifest
from keras_vit._base.version import __version__
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.preprocessing import evaluation_image
from keras_vit.exporting import onnx_file
from keras_vit.exporting.agreement import check_files
from keras_vit.exporting.contract import Contract, Run
from keras_vit.exporting.page_app import BESIDE, INDEX, LINKS, asset, write_app
from keras_vit.exporting.page_engine import ENGINE, VERSION, WASM
from keras_vit.exporting.proof import PROOF
from keras_vit.models import ImageModel

# What `write` writes.
MODEL_PARTS = ("contract", "checks", "graph")
PARTS = (*MODEL_PARTS, PROOF, "about", "engine", "wasm")
SCRIPTS = ("text.js", "image.js", "model.js", "page.js")
# Larger than this, unpacked, browsers fail: their longest strings are half a gigabyte.
MOST_BYTES = 300 * 10**6
LARGEST_PAGE = 2 * MOST_BYTES
# How far answers to the stored images may be off in a browser, as a part of their scale: float32
# differs by 1e-7 there.
TOLERANCE = 1e-4
_MARK = b'<meta name="generator" content="keras_vit '
_PART = '<script type="application/octet-stream" id="part-{name}">{text}</script>'
_SUMS = '<script type="application/json" id="sums">{text}</script>'
# Rounds down, so that the last digit of a sum is a level of the pixel.
_UNEQUAL_MODE = "big_vision"


def check_contract(contract: Contract) -> None:
    """Raises a ValueError for a model whose images or answers a page cannot show."""
    transform = contract.evaluation
    if contract.tasks:
        raise ValueError(
            "A page shows the answer of one task, and the model has several heads: export the "
            "model of one head, or give another format."
        )
    if contract.task is None:
        raise ValueError(
            "A page shows what a task answers, and the model does not have one: "
            'model.task = "classification", for example.'
        )
    if contract.task.per_pixel:
        raise ValueError(
            f"A page shows an answer per image, and {contract.task.kind} answers every pixel: give "
            "another format."
        )
    if not contract.reads_files or transform.bands is not None:
        raise ValueError(
            f"A page reads photographs, in color or gray, and the model takes {contract.channels} "
            "channels in a range of their own: give another format."
        )
    if transform.mode == _UNEQUAL_MODE:
        raise ValueError(
            f"eval_transform.mode={transform.mode!r} rounds pixels down, which a browser does not "
            'do to the same ones. Set model.eval_transform = "crop", evaluate the model, and '
            "export it again; or give another format."
        )


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a page without its engine, from the graph of the ONNX file.

    Raises:
        ValueError: The model is too large for browsers.
    """
    proto = onnx_file.graph_of(model, contract, attention=True)
    proto = onnx_file.in_fewer_bits(proto, contract.quantize, onnx_file.round_weights)
    graph = onnx_file.taking_floats(proto)
    if len(graph) > MOST_BYTES:
        raise ValueError(
            f"the model has {len(graph) / 1e6:,.0f} MB, and browsers open pages of models up to "
            f"{MOST_BYTES / 1e6:,.0f} MB: give quantize='int8', or a smaller model."
        )
    parts = {
        "contract": contract.to_text().encode(),
        "checks": json.dumps(_checks(contract, graph)).encode(),
        "graph": graph,
    }
    _save(path, parts)


def finish(path: Path, name: str, engine: Mapping[str, bytes], card: Mapping[str, str]) -> None:
    """Adds the engine, the name and the lines of the card to what `write` wrote."""
    parts = _parts(path, *MODEL_PARTS, PROOF)
    about = {
        "name": name,
        "card": dict(card),
        "engine": f"ONNX Runtime Web {VERSION}",
        "license": asset("onnxruntime_license.txt"),
        "graph_sum": hashlib.sha256(parts["graph"]).hexdigest(),
    }
    parts |= {"about": json.dumps(about).encode(), "engine": engine[ENGINE], "wasm": engine[WASM]}
    _save(path, parts)
    if path.is_dir():
        write_app(path, name)


def _checks(contract: Contract, graph: bytes) -> dict[str, Any]:
    """Return images as files, their pixels' sums and their answers, for the page."""
    names = contract.measured
    run, images = onnx_file.graph_runner(graph, names), []
    for kind, content in check_files(contract.image_size):
        pixels = decode_with_pillow(content, contract.channels)
        prepared = evaluation_image(pixels, contract.image_size, contract.evaluation)
        rows = run(np.asarray(prepared, "float32")[None])
        images.append(
            {
                "file": base64.b64encode(content).decode(),
                "kind": kind,
                "pixels": hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest(),
                "outputs": {n: row[0].ravel().tolist() for n, row in zip(names, rows, strict=True)},
            }
        )
    assert contract.task is not None
    scale = np.broadcast_to(contract.task.answer_scale, contract.answer_shape)
    return {
        "answers": names[0],
        "scale": {names[0]: scale.tolist()},
        "tolerance": TOLERANCE,
        "images": images,
    }


def _save(path: Path, parts: Mapping[str, bytes]) -> None:
    """Writes a page: to a file, or into a folder, beside its large parts."""
    packed = {name: gzip.compress(part, 9, mtime=0) for name, part in parts.items()}
    if path.is_dir():
        for name in BESIDE.keys() & packed:
            (path / BESIDE[name]).write_bytes(packed[name])
    _page_of(path).write_bytes(_page(packed, in_folder=path.is_dir()))


def _page_of(path: Path) -> Path:
    return path / INDEX if path.is_dir() else path


def _page(packed: Mapping[str, bytes], *, in_folder: bool) -> bytes:
    style, script = asset("page.css"), "\n".join(map(asset, SCRIPTS))
    policy = {
        "default-src": "'none'",
        "script-src": f"{_hash(script)} blob: 'wasm-unsafe-eval'",
        "style-src": _hash(style),
        "img-src": "blob: data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if in_folder:
        policy["img-src"] += " 'self'"
        policy |= dict.fromkeys(("connect-src", "manifest-src", "worker-src"), "'self'")
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in packed.items()}
    blocks = [
        _PART.format(name=name, text=base64.b64encode(part).decode())
        for name, part in packed.items()
        if not (in_folder and name in BESIDE)
    ]
    # The sums are last: a page that is cut off does not have them.
    blocks.append(_SUMS.format(text=json.dumps(sums)))
    page = Template(asset("page.html")).substitute(
        version=__version__,
        policy="; ".join(" ".join(rule) for rule in policy.items()),
        links=LINKS if in_folder else '<link rel="icon" href="data:,">',
        stays="staysInFolder" if in_folder else "stays",
        style=style,
        script=script,
        parts="\n".join(blocks),
    )
    return page.encode()


def _parts(path: Path, *names: str) -> dict[str, bytes]:
    """Return parts of a page, those of these names that it has, whose sums are compared.

    Raises:
        KeyError: It is not a page of this package.
        ValueError: It is cut off, or a part was changed.
    """
    page = _content(_page_of(path))
    if _MARK not in page[:1000]:
        raise KeyError(_MARK)
    listed = re.search(_SUMS.format(text="([^<]*)").encode(), page[-10_000:])
    if listed is None:
        raise ValueError("it is cut off")
    sums, parts = json.loads(listed[1]), {}
    for name in filter(sums.__contains__, names):
        block = re.search(_PART.format(name=name, text="([A-Za-z0-9+/=]*)").encode(), page)
        packed = base64.b64decode(block[1]) if block else b""
        beside = _page_of(path).parent / BESIDE.get(name, "")
        if block is None and beside.is_file():
            packed = _content(beside)
        if hashlib.sha256(packed).hexdigest() != sums[name]:
            raise ValueError(f"its part {printable(name)} was changed")
        unpacked = zlib.decompressobj(31)
        parts[name] = unpacked.decompress(packed, MOST_BYTES)
        if not unpacked.eof:
            raise ValueError(f"its part {printable(name)} is longer than {MOST_BYTES:,} bytes")
    return parts


def _content(file: Path) -> bytes:
    if file.stat().st_size > LARGEST_PAGE:
        raise ValueError(f"{printable(file.name)} is larger than {LARGEST_PAGE:,} bytes")
    return file.read_bytes()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def read_contract(path: Path) -> Contract:
    """Return the contract in a page."""
    return Contract.from_text(_parts(path, "contract")["contract"])


def add_proof(path: Path, text: str) -> None:
    """Adds a proof to what `write` wrote."""
    _save(path, {**_parts(path, *MODEL_PARTS), PROOF: text.encode()})


def read_proof(path: Path) -> tuple[bytes | None, str]:
    """Return the proof in a page, or None, and the sum of the parts that `write` wrote."""
    parts = _parts(path, *PARTS)  # the engine, too, which Python does not run
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest and (changed := sorted(manifest.sums.keys() - own_files(path))):
        raise ValueError(f"{printable(', '.join(changed))}: changed or missing")
    rest = hashlib.sha256(b"".join(parts[name] for name in MODEL_PARTS)).hexdigest()
    return parts.get(PROOF), rest


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels to the named outputs, by the graph in the page."""
    run = onnx_file.graph_runner(_parts(path, "graph")["graph"], outputs)
    return lambda images: run(images.astype("float32"))
