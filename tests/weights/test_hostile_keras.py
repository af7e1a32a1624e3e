"""`.keras` and HDF5 files made to harm: refused before a model is built or a link followed."""

import json
import os
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from keras_vit import BiTResNet, MLPMixer, VisionTransformer
from keras_vit.weights import CheckpointError, from_checkpoint, load_model, load_weights
from tests.weights.models import SIZES, fill, small

SLACK = 2_000_000


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keras") / "model.keras"
    small().save(file)
    return file


def rewritten(
    source: Path,
    file: Path,
    config: Callable[[dict[str, Any]], Any] | None = None,
    weights: Callable[[Any], Any] | None = None,
    compression: int = zipfile.ZIP_STORED,
    **entries: bytes,
) -> Path:
    """A `.keras` file with its configuration or weights changed."""
    with zipfile.ZipFile(source) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    if config:
        whole = json.loads(content["config.json"])
        content["config.json"] = json.dumps(config(whole) or whole).encode()
    if weights:
        h5 = file.with_suffix(".h5")
        h5.write_bytes(content["model.weights.h5"])
        with h5py.File(h5, "a") as opened:
            weights(opened)
        content["model.weights.h5"] = h5.read_bytes()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in {**content, **entries}.items():
            archive.writestr(name, data)
    return file


def refused(file: Path, message: str) -> None:
    """Checks that loading raises at once, in one line, for little memory."""
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(CheckpointError, match=message) as caught:
            load_model(file)
        assert time.perf_counter() - begin < 5
        assert tracemalloc.get_traced_memory()[1] <= 4 * file.stat().st_size + SLACK
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable()


SIZE_CLAIMS: dict[str, Any] = {
    "hidden_dim": 16_384,
    "depth": 3_000,
    "mlp_dim": 10**9,
    "num_classes": 10**9,
    "representation_size": 10**8,
    "num_registers": 10**8,
    "position_grid": [10**5, 10**5],
    "patch_size": [10**5, 10**5],
    "resnet": [100, 100, 100],
    "resnet_width": "wide",
    "input_shape": [10**6, 10**6, 3],
}


@pytest.mark.parametrize("name", SIZE_CLAIMS)
def test_a_configuration_larger_than_its_tensors(name: str, pristine: Path, tmp_path: Path) -> None:
    def claim(whole: dict[str, Any]) -> None:
        whole["config"][name] = SIZE_CLAIMS[name]
        if name == "resnet_width":
            whole["config"]["resnet"] = [1]

    file = rewritten(pristine, tmp_path / "m.keras", claim)
    refused(file, "The configuration in .*m.keras is")
    with pytest.raises(CheckpointError, match="The configuration in"):
        load_weights(small(), file)


@pytest.mark.parametrize("value", [-5, 2.5, "12", None, 10**400])
@pytest.mark.parametrize("name", ["hidden_dim", "depth", "mlp_dim", "patch_size", "input_shape"])
def test_sizes_that_are_not_sizes(name: str, value: Any, pristine: Path, tmp_path: Path) -> None:
    if (name, value) == ("mlp_dim", None):
        pytest.skip("None is the default")

    def claim(whole: dict[str, Any]) -> None:
        whole["config"][name] = value

    refused(rewritten(pristine, tmp_path / "m.keras", claim), "configuration|cannot be read")


def test_a_limit_of_ones_own(pristine: Path) -> None:
    parameters = small().count_params()
    for load in (load_model, from_checkpoint):
        with pytest.raises(CheckpointError, match="max_parameters=1,000"):
            load(pristine, max_parameters=1_000)
        assert load(pristine, max_parameters=parameters).count_params() == parameters


@pytest.mark.parametrize(
    "whole",
    [
        {"module": "os", "class_name": "system", "registered_name": None, "config": {}},
        {"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
         "config": {}},
        {"module": "keras.layers", "class_name": "Lambda", "registered_name": "Lambda",
         "config": {"function": "evil"}},
        {"module": "keras_vit.layers", "class_name": "PatchEmbedding",
         "registered_name": "keras_vit>PatchEmbedding", "config": {}},
        {"class_name": "VisionTransformer"},
        {"registered_name": ["x"], "config": {}},
        {"registered_name": {}, "config": {}},
        [], 3, None,
    ],
)  # fmt: skip
def test_classes_of_others(whole: Any, pristine: Path, tmp_path: Path) -> None:
    file = rewritten(pristine, tmp_path / "m.keras", **{"config.json": json.dumps(whole).encode()})
    refused(file, "not a model of keras_vit|does not describe a model")


@pytest.mark.parametrize(
    "dtype",
    [
        {"module": "os", "class_name": "system", "config": {"command": "true"}},
        {"module": "keras.layers", "class_name": "Lambda", "config": {}},
        {"module": "shutil", "class_name": "DTypePolicy", "config": {"name": "float32"}},
        {"module": "keras", "class_name": "DTypePolicyMap", "config": {
            "policy_map": {"a": {"module": "os", "class_name": "system", "config": {}}}}},
        ["float32"],
    ],
)  # fmt: skip
def test_dtypes_that_name_other_classes(dtype: Any, pristine: Path, tmp_path: Path) -> None:
    def claim(whole: dict[str, Any]) -> None:
        whole["config"]["dtype"] = dtype

    refused(rewritten(pristine, tmp_path / "m.keras", claim), "a dtype policy of Keras is accepted")


def test_texts_that_are_not_a_configuration(pristine: Path, tmp_path: Path) -> None:
    for text in (b"", b"{", b"[" * 100_000, b'{"a": NaN', b"\xff\xfe", b"9" * 5000):
        refused(
            rewritten(pristine, tmp_path / "m.keras", **{"config.json": text}),
            "does not describe a model",
        )
    refused(
        rewritten(pristine, tmp_path / "m.keras", **{"config.json": b" " * (2**25 + 1)}),
        "config.json of .* has 33,554,433 bytes",
    )


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


H5_ATTACKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "external link": (
        _replace(lambda f: f.__setitem__(HEAD, h5py.ExternalLink("/etc/other.h5", "/x"))),
        "is a link to elsewhere",
    ),
    "soft link": (
        _replace(lambda f: f.__setitem__(HEAD, h5py.SoftLink("/layers"))),
        "is a link to elsewhere",
    ),
    "hard link": (
        _replace(lambda f: f.__setitem__(HEAD, f["layers"])),
        "second name of another entry",
    ),
    "cycle": (lambda f: f["layers"].__setitem__("again", f["/"]), "second name of another entry"),
    "virtual": (_replace(_virtual), "has its data elsewhere"),
    "raw data of another file": (
        _replace(
            lambda f: f.create_dataset(
                HEAD, (32, 5), "f4", external=[("/etc/passwd", 0, 640)], data=None
            )
        ),
        "has its data elsewhere",
    ),
    "size without data": (_replace(_unallocated), "declares shape .* but 0 are stored"),
    "compressed bomb": (
        _replace(
            lambda f: f.create_dataset(
                HEAD, data=np.zeros((2**12, 2**12), "f4"), compression="gzip"
            )
        ),
        "declares arrays of",
    ),
    "text": (_replace(lambda f: f.__setitem__(HEAD, "text")), "weights are numbers"),
    "objects": (
        _replace(lambda f: f.create_dataset(HEAD, (32,), dtype=h5py.ref_dtype)),
        "weights are numbers|stored",
    ),
    "missing": (_replace(lambda f: None), "cannot be read by Keras|not the array before it"),
    "escape sequence": (
        lambda f: f["layers"].__setitem__("\x1b[2J\nred", h5py.SoftLink("/x")),
        r"x1b\[2J",
    ),
}


@pytest.mark.parametrize("attack", H5_ATTACKS)
def test_what_hdf5_can_do_beside_arrays(attack: str, pristine: Path, tmp_path: Path) -> None:
    weights, message = H5_ATTACKS[attack]
    file = rewritten(pristine, tmp_path / "m.keras", weights=weights)
    refused(file, message)
    # The same HDF5 as a file of weights.
    weights_file = (tmp_path / "m.h5").rename(tmp_path / "m.weights.h5")
    with pytest.raises(CheckpointError, match=message):
        load_weights(small(), weights_file)


def test_archives(pristine: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.keras"
    bomb = bytes(10**8)
    rewritten(pristine, file, compression=zipfile.ZIP_DEFLATED, **{"metadata.json": bomb})
    refused(file, "made to exhaust the memory")
    refused(rewritten(pristine, file, **{"../../evil": b"x"}), r"holds \.\./\.\./evil, config")
    refused(rewritten(pristine, file, **{"assets/x": b"x"}), "holds assets/x")
    with zipfile.ZipFile(file, "w"):
        pass
    refused(file, "holds nothing")
    with zipfile.ZipFile(pristine) as source, zipfile.ZipFile(file, "w") as archive:
        for name in ("metadata.json", "config.json"):
            archive.writestr(name, source.read(name))
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(3000))
    refused(file, "not a whole HDF5 file")


@pytest.mark.parametrize("name", ["m.keras", "m.npz", "m.safetensors", "m.weights.h5", "m.bin"])
def test_pipes_and_devices_are_not_opened(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for load in (load_model, from_checkpoint, lambda file: load_weights(small(), file)):
        with pytest.raises(CheckpointError, match="is a named pipe: give a regular file"):
            load(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="is a device: give a regular file"):
        load_model(tmp_path / name)


def test_pipes_beside_the_weights(tmp_path: Path) -> None:
    from tests.weights.models import saved

    file = saved(tmp_path, "huggingface")
    for name in ("config.json", "preprocessor_config.json", "SHA256SUMS"):
        os.mkfifo(tmp_path / name)
    assert load_model(file).hidden_dim == 32


# And nothing that is honest is refused


def _quantized(mode: str) -> Any:
    model = small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the layers that have nothing to quantize
        model.quantize(mode)
    return model


HONEST: dict[str, Callable[[], Any]] = {
    "gap": lambda: small(pooling="gap", num_classes=0),
    "map": lambda: small(pooling="map", representation_size=7),
    "learned_2d": lambda: small(position_embedding="learned_2d", num_registers=3),
    "relative": lambda: small(position_embedding="relative"),
    "sincos2d": lambda: small(position_embedding="sincos2d", token_merging=2),
    "swiglu": lambda: small(activation="swiglu", layer_scale=0.1),
    "any size": lambda: small(input_shape=(None, None, 3)),
    "channels_first": lambda: small(input_shape=(3, 32, 64), data_format="channels_first"),
    "one value": lambda: small(hidden_dim=1, num_heads=1, mlp_dim=1, num_classes=1),
    "hybrid": lambda: small(resnet=(1, 1), patch_size=2, input_shape=(64, 64, 3)),
    "mixer": lambda: MLPMixer(patch_size=8, hidden_dim=8, depth=2, input_shape=(32, 40, 3)),
    "bit": lambda: BiTResNet(depths=(1, 2), width=32, input_shape=(32, 32, 3), num_classes=3),
    "bit v1": lambda: BiTResNet(depths=(2,), width=32, version=1, input_shape=(32, 32, 3)),
    "bfloat16": lambda: small(dtype="bfloat16"),
    "int8": lambda: _quantized("int8"),
    "int4": lambda: _quantized("int4"),  # two values in a byte
    "policies": lambda: small(dtype=keras.dtype_policies.DTypePolicyMap("float32")),
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_models_pass(kind: str, tmp_path: Path) -> None:
    model = HONEST[kind]()
    if kind not in ("int8", "int4"):
        fill(model)
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path)
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_compiled_model_passes(tmp_path: Path) -> None:
    model = VisionTransformer(**SIZES)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((2, 32, 32, 3)), np.zeros(2), verbose=0)
    model.save(tmp_path / "model.keras")
    assert load_model(tmp_path).count_params() == model.count_params()
