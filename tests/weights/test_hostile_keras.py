"""`.keras` and HDF5 files made to harm: refused before a model is built or a link followed."""

import json
import time
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.models import BiTResNet, MLPMixer
from keras_vit.weights import load, load_weights
from tests.bank import fill, fresh, small
from tests.weights.models import little_memory, refused


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keras") / "model.keras"
    small().save(file)
    return file


def rewritten(
    old: Path, file: Path, config: Any = None, weights: Any = None, method: int = 0, **entries: Any
) -> Path:
    """A `.keras` file with options of its configuration, its weights, or whole entries changed."""
    with zipfile.ZipFile(old) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    if config:
        whole = json.loads(content["config.json"])
        whole["config"] |= config
        content["config.json"] = json.dumps(whole).encode()
    if weights:
        h5 = file.with_suffix(".h5")
        h5.write_bytes(content["model.weights.h5"])
        with h5py.File(h5, "a") as opened:
            weights(opened)
        content["model.weights.h5"] = h5.read_bytes()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in {**content, **entries}.items():
            archive.writestr(name, data)
    return file


def check(file: Path, message: str) -> None:
    """Checks that loading raises at once, in one line, for little memory."""
    begin = time.perf_counter()
    with little_memory(file, times=4, slack=2_000_000):
        said = refused(message, load, file)
    assert time.perf_counter() - begin < 5
    assert said.isprintable()


LARGER, UNREADABLE = "The configuration in .*m.keras is", "configuration|cannot be read"
DTYPE = "a dtype policy of Keras is accepted"
SYSTEM = {"module": "os", "class_name": "system", "config": {"command": "true"}}
LAMBDA = {"class_name": "Lambda", "config": {"function": ["4wAAAA==", None, None]}}
SIZES = ("hidden_dim", "depth", "mlp_dim", "patch_size", "input_shape")
NO_SIZES = [(name, value) for name in SIZES for value in (-5, 2.5, "12", None, 10**400)]
TOO_LARGE: list[dict[str, Any]] = [
    *({"hidden_dim": 16_384}, {"depth": 3_000}, {"mlp_dim": 10**9}, {"num_classes": 10**9}),
    *({"representation_size": 10**8}, {"num_registers": 10**8}, {"resnet": [100, 100, 100]}),
    *({"position_grid": [10**5, 10**5]}, {"patch_size": [10**5, 10**5]}),
    *({"resnet_width": "wide", "resnet": [1]}, {"input_shape": [10**6, 10**6, 3]}),
]
# Changes of the configuration, and what the error for a `.keras` file says.
CLAIMS: list[tuple[dict[str, Any], str]] = [
    *((changes, LARGER) for changes in TOO_LARGE),
    *(({n: v}, UNREADABLE) for n, v in NO_SIZES if (n, v) != ("mlp_dim", None)),  # its default
    ({"dtype": SYSTEM}, DTYPE),
    ({"dtype": {"module": "keras.layers", "class_name": "Lambda", "config": {}}}, DTYPE),
    ({"dtype": {**SYSTEM, "module": "shutil", "class_name": "DTypePolicy"}}, DTYPE),
    ({"dtype": {"module": "keras", "class_name": "DTypePolicyMap",
                "config": {"policy_map": {"a": SYSTEM}}}}, DTYPE),
    ({"dtype": ["float32"]}, DTYPE),
]  # fmt: skip


@pytest.mark.parametrize("changes", [
    *({"hidden_dim": 16_384}, {"dtype": SYSTEM}, {"quantizers": {"head": SYSTEM}}),
    {"activation": {**LAMBDA, "__passive_serialization__": True}},
], ids=str)  # fmt: skip
def test_configurations_in_h5(changes: dict[str, Any], tmp_path: Path) -> None:
    """Keras's reader of these files would build whatever the configuration names."""
    file = tmp_path / "m.h5"
    small().save(file)
    with h5py.File(file, "r+") as opened:
        whole = json.loads(opened.attrs["model_config"])
        whole["config"] |= changes
        opened.attrs["model_config"] = json.dumps(whole)
    for read in (load, partial(load, num_classes=2), lambda file: load_weights(small(), file)):
        refused(".", read, file)


def test_a_limit_of_ones_own(pristine: Path) -> None:
    parameters = small().count_params()
    for read in (load, partial(load, norm_epsilon=1e-6)):
        refused("max_parameters=1,000", read, pristine, max_parameters=1_000)
        assert read(pristine, max_parameters=parameters).count_params() == parameters


SEQUENTIAL = {"module": "keras", "class_name": "Sequential", "registered_name": "Sequential"}
PATCHES = {"class_name": "PatchEmbedding", "registered_name": "keras_vit>PatchEmbedding"}
EVIL = {"registered_name": "Lambda", "config": {"function": "evil"}}
WHOLE: list[Any] = [
    {"module": "os", "class_name": "system", "registered_name": None, "config": {}},
    {"module": "keras.layers", "class_name": "Lambda", **EVIL},
    {"module": "keras_vit.layers", **PATCHES, "config": {}},
    *({**SEQUENTIAL, "config": {}}, {"class_name": "VisionTransformer"}, [], 3, None),
    *({"registered_name": ["x"], "config": {}}, {"registered_name": {}, "config": {}}),
]
TEXTS = (b"", b"{", b'{"a": NaN', b"\xff\xfe", b"[" * 100_000, b"9" * 5000)
NOT_OURS = "not a model of keras_vit|describe a model"
NO_H5 = b"\x89HDF\r\n\x1a\n" + bytes(3000)
# What is changed in a file of `model.save`: its configuration, or whole entries of the archive.
HOSTILE: list[tuple[dict[str, Any], str]] = [
    *(({"config": changes}, message) for changes, message in CLAIMS),
    *(({"config.json": json.dumps(whole).encode()}, NOT_OURS) for whole in WHOLE),
    *(({"config.json": text}, "does not describe a model") for text in TEXTS),
    ({"../../evil": b"x"}, r"holds \.\./\.\./evil, config"),
    ({"assets/x": b"x"}, "holds assets/x"),
    ({"model.weights.h5": NO_H5}, "not a whole HDF5 file"),
]


@pytest.mark.parametrize(("changes", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files(changes: Any, message: str, pristine: Path, tmp_path: Path) -> None:
    check(file := rewritten(pristine, tmp_path / "m.keras", **changes), message)
    if message in (LARGER, UNREADABLE, DTYPE):
        refused(message, load_weights, small(), file)


def test_archives_of_nothing_and_of_too_much(pristine: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.keras"
    zipfile.ZipFile(file, "w").close()
    check(file, "holds nothing")
    rewritten(pristine, file, **{"config.json": b" " * (2**25 + 1)})
    check(file, "config.json of .* has 33,554,433 bytes")
    rewritten(pristine, file, method=zipfile.ZIP_DEFLATED, **{"metadata.json": bytes(10**8)})
    check(file, "made to exhaust the memory")


HEAD = "layers/dense/vars/0"


def _replace(change: Callable[[Any], None]) -> Callable[[Any], None]:
    def weights(file: Any) -> None:
        del file[HEAD]
        change(file)

    return weights


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(shape=(32, 5), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/elsewhere.h5", "data", shape=(32, 5))
    file.create_virtual_dataset(HEAD, layout)


def _unallocated(file: Any) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((2**30, 2**10))
    h5py.h5d.create(file["layers/dense/vars"].id, b"0", h5py.h5t.IEEE_F32LE, space, plan)


def _replaced(value: Any) -> Callable[[Any], None]:
    return _replace(lambda file: file.__setitem__(HEAD, value(file)))


def _created(**options: Any) -> Callable[[Any], None]:
    return _replace(lambda file: file.create_dataset(HEAD, **options))


SQUARE = {"data": np.broadcast_to(np.float32(0), (2**12, 2**12)), "compression": "gzip"}
PASSWORDS = {"shape": (32, 5), "dtype": "f4", "external": [("/etc/passwd", 0, 640)]}
ESCAPE = "\x1b[2J\nred"
LINK, ELSEWHERE = "is a link to elsewhere", "has its data elsewhere"
H5_ATTACKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "external link": (_replaced(lambda _: h5py.ExternalLink("/etc/other.h5", "/x")), LINK),
    "soft link": (_replaced(lambda _: h5py.SoftLink("/layers")), LINK),
    "hard link": (_replaced(lambda file: file["layers"]), "second name of another entry"),
    "cycle": (lambda f: f["layers"].__setitem__("again", f["/"]), "second name of another entry"),
    "virtual": (_replace(_virtual), ELSEWHERE),
    "raw data of another file": (_created(**PASSWORDS, data=None), ELSEWHERE),
    "size without data": (_replace(_unallocated), "declares shape .* but 0 are stored"),
    "compressed bomb": (_created(**SQUARE), "declares arrays of"),
    "text": (_replaced(lambda _: "text"), "weights are numbers"),
    "objects": (_created(shape=(32,), dtype=h5py.ref_dtype), "weights are numbers|stored"),
    "missing": (_replace(lambda _: None), "cannot be read by Keras|not the array before it"),
    "escape": (lambda f: f["layers"].__setitem__(ESCAPE, h5py.SoftLink("/x")), r"x1b\[2J"),
}


@pytest.mark.parametrize("attack", H5_ATTACKS)
def test_what_hdf5_can_do_beside_arrays(attack: str, pristine: Path, tmp_path: Path) -> None:
    weights, message = H5_ATTACKS[attack]
    check(rewritten(pristine, tmp_path / "m.keras", weights=weights), message)
    # The same HDF5 as a file of weights.
    weights_file = (tmp_path / "m.h5").rename(tmp_path / "m.weights.h5")
    refused(message, load_weights, small(), weights_file)


def _quantized(mode: str) -> Any:
    model = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the layers that have nothing to quantize
        model.quantize(mode)
    return model


def _compiled() -> Any:
    model = fresh(filled=False)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((2, 32, 32, 3)), np.zeros(2), verbose=0)
    return model


# Beside all kinds, in `tests/models/test_common.py`.
HONEST: dict[str, Callable[[], Any]] = {
    "merging": lambda: small(position_embedding="sincos2d", token_merging=2),
    "any size": lambda: small(input_shape=(None, None, 3)),
    "channels_first": lambda: small(input_shape=(3, 32, 64), data_format="channels_first"),
    "one value": lambda: small(hidden_dim=1, num_heads=1, mlp_dim=1, num_classes=1),
    "mixer": lambda: MLPMixer(patch_size=8, hidden_dim=8, depth=2, input_shape=(32, 40, 3)),
    "bit": lambda: BiTResNet(depths=(1, 2), width=32, input_shape=(32, 32, 3), num_classes=3),
    "bit v1": lambda: BiTResNet(depths=(2,), width=32, version=1, input_shape=(32, 32, 3)),
    "bfloat16": lambda: small(dtype="bfloat16"),
    "int8": lambda: _quantized("int8"),
    "int4": lambda: _quantized("int4"),  # two values in a byte
    "compiled": _compiled,
    "policies": lambda: small(dtype=keras.dtype_policies.DTypePolicyMap("float32")),
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_models_pass(kind: str, tmp_path: Path) -> None:
    model = HONEST[kind]()
    if not isinstance(model, VisionTransformer):
        fill(model)
    model.save(tmp_path / "model.keras")
    np.testing.assert_equal(load(tmp_path).get_weights(), model.get_weights())
