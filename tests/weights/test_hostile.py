"""Broken, foreign and hostile files: a typed error that names the place, and an untouched model."""

import json
import os
import struct
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import VisionTransformer
from keras_vit.models import BiTResNet
from keras_vit.weights import load, load_weights, save_weights
from keras_vit.weights.variables import canonical_values
from tests.bank import fill, fresh, small, small_kind
from tests.weights.models import little_memory, refused, saved

Check = Callable[..., None]
Write = Callable[[Path], Path]


class Attack:
    """A pickle that leaves a file where it is run."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("was-here"),))


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return fresh()


@pytest.fixture
def check(model: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    before = canonical_values(model)
    monkeypatch.chdir(tmp_path)

    def checked(file: Path, message: str = ".", read: Any = None, **memory: int) -> None:
        begin = time.perf_counter()
        with little_memory(file, **memory):
            said = refused(message, read or partial(load_weights, model), file)
        assert time.perf_counter() - begin < 5
        assert said.isprintable()
        np.testing.assert_equal(canonical_values(model), before)
        assert not Path("was-here").exists()

    return checked


def zeros(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def changed(file: Path, arrays: dict[str, Any]) -> Path:
    content = {**(np.load(file) if file.exists() else {}), **arrays}
    np.savez(file, **{name: values for name, values in content.items() if values is not None})
    return file


def made(name: str, make: Callable[[Path], Any]) -> Write:
    def write(folder: Path) -> Path:
        make(folder / name)
        return folder / name

    return write


def npz(arrays: dict[str, Any]) -> Write:
    return lambda folder: changed(saved(folder), arrays)


def npz_of(*names: str) -> Write:
    return lambda folder: changed(folder / "m.npz", {name: zeros(2) for name in names})


def timm_with(name: str) -> Write:
    def write(folder: Path) -> Path:
        tensors = load_file(file := saved(folder, "timm"))
        added = tensors["head.bias"] if name.endswith("head.bias") else zeros(1, 1, 32)
        save_file({**tensors, name: added}, file)
        return file

    return write


def safetensors(header: Any, data: int = 0, length: int | None = None) -> Write:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = struct.pack("<Q", length or len(text)) + text + bytes(data)
    return made("m.safetensors", lambda file: file.write_bytes(content))


def f32(shape: Any, begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def bomb(file: Path) -> None:
    np.savez_compressed(file, **{"embedding/kernel": zeros(16, 16, 3, 100_000)})


def zipped(**files: bytes) -> Write:
    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(f"{name}.npy", content)

    return made("m.npz", write)


def twice(folder: Path) -> Path:
    file = saved(folder)  # as if another program had written it: no sum catches what follows
    file.write_bytes(file.read_bytes().replace(b"keras_vit_sha256", b"another_program_"))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cls.npy", archive.read("cls.npy"))
    return file


BLOCK = "Transformer/encoderblock_0"
QUERY = f"{BLOCK}/MultiHeadDotProductAttention_1/query/kernel"
POSITIONS = "Transformer/posembed_input/pos_embedding"
NO_SCALE = "'block_0/norm_0/scale' of the model is not in the file|LayerNorm"
SHAPE = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
LIE = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + f"{str(SHAPE).ljust(117)}\n".encode()
ENDLESS = np.ones((3, 32, 5), "float32")
ENDLESS[:, 3, 2] = np.nan, np.inf, -np.inf
DOUBLE = b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": 1}'
NO_STRUCT = "invalid JSON .* expected struct"
NO_SUFFIX = "does not have the suffix of a file of weights"
HOSTILE: list[tuple[Write, str]] = [
    (npz({"cls": zeros(1, 1, 31)}), r"'cls' is class_token of shape \(1, 1, 31\)"),
    (npz({"cls": zeros(1, 1, 32, dtype="int32")}), "'cls' holds int32"),
    (npz({"cls": np.array([Attack()], dtype=object)}), "'cls' holds object"),
    (npz({"cls": np.array(["text"])}), "'cls' holds <U4"),
    (npz({"surprise": zeros(3)}), "'surprise' is not part of"),
    (npz({"embedding/kernel": None}), "'embedding/kernel'|no patch embedding|embedding"),
    (npz({"embedding/kernel": zeros(8, 0, 3, 32)}), "embedding/kernel"),
    (npz({QUERY: zeros(32, 32)}), QUERY.removeprefix("Transformer/")),
    (npz({f"{BLOCK}/LayerNorm_0/scale": None}), NO_SCALE),
    (npz({POSITIONS: zeros(1, 0, 32)}), "pos"),
    *((npz({"head/kernel": kernel}), r"'head/kernel' holds .* at \(3, 2\)") for kernel in ENDLESS),
    (made("m.npz", bomb), "declares arrays of 307,200,"),
    # The directory lies about the size; the header of the array shows what will come.
    (zipped(cls=LIE), "'cls' declares shape"),
    (zipped(**{f"array-number-{i}": b"" for i in range(5_000)}), "zip directory"),
    (twice, "2 arrays named 'cls.npy'"),
    (safetensors(b"{}", length=2**60), "header of 1,152,921,504,606,846,976 bytes at byte 0"),
    (safetensors(b"[" * 50_000), NO_STRUCT),
    (safetensors({"a": f32([2**40], 0, 2**42)}), "0 of data.* file not fully covered"),
    (safetensors({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, 12), "invalid offset for tensor `b`"),
    (safetensors({"a": f32([3], 0, 8)}, 8), "invalid shape, data type, or offset"),
    (safetensors({"a": f32([-2], 0, -8)}), "invalid value: integer `-2`, .* column 63"),
    (safetensors({"a": f32([2], 0, 8, "F99")}, 8), "unknown variant `F99`"),
    (safetensors(DOUBLE, 4), "invalid type: integer `1`, expected struct"),
    (
        made("m.pth", lambda file: pytest.importorskip("torch").save({"x": Attack()}, file)),
        r"^(?!.*weights_only).*holds Python objects \(\S+\)",
    ),
    (timm_with("module.head.bias"), "both mean 'head.bias'"),
    # What other models of timm have is refused with the reason.
    (timm_with("fc_norm.weight"), "fc_norm.weight.*does not belong to the model"),
    (timm_with("blocks.0.attn.q_norm.weight"), "q_norm.weight.*normalizes queries and keys"),
    (timm_with("blocks.0.attn.norm.weight"), "norm.weight.*normalizes inside the attention"),
    (timm_with("blocks.0.attn.rel_pos.weight"), "weight' is not part of the 'timm' layout"),
    (npz_of("visual.conv1.weight"), "a CLIP"),
    (npz_of("conv_proj.weight"), "torchvision"),
    (npz_of("a", "b"), "in no layout that is known"),
    (npz_of(), "its first tensors are none"),
    (made("m.npz", lambda file: save_weights(small_kind("mixer"), file, "google")), "of MLPMixer"),
    (made("folder.npz", Path.mkdir), "is a folder: give a regular file"),
    (made("m.txt", lambda file: file.write_text("hello")), NO_SUFFIX),
]


def test_a_file_of_vit_pytorch(shared: Path, check: Check) -> None:
    pytest.importorskip("torch")
    check(shared / "weights" / "foreign" / "vit_mnist_gpu.pt", "lucidrains")


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.keras", "m.weights.h5", "m.bin"])
def test_things_that_are_not_weights(name: str, tmp_path: Path, check: Check) -> None:
    file = tmp_path / name
    for content in ("<html>404</html>", ""):
        file.write_text(content)
        check(file)
    file.unlink()
    refused(".", load, file, error=FileNotFoundError)
    os.mkfifo(file)
    for read in (load, partial(load, num_classes=2), lambda file: load_weights(small(), file)):
        refused("is a named pipe: give a regular file", read, file)
    file.unlink()
    file.symlink_to("/dev/zero")
    refused("is a device: give a regular file", load, file)


def noted(file: Path, notes: Any) -> Path:
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = json.dumps({"keras_vit": notes}).encode()
    return file


def claiming(positions: str, side: int) -> Write:
    notes = {"arguments": {"position_embedding": positions}, "image_size": [side, side]}
    return lambda folder: noted(saved(folder), notes)


KERNELS = ((0, 8, 3, 32), (8, 8, 3), (8, 8, 3, 0), (2**20, 0, 2**30, 32))
WIDE = {"pre_logits/kernel": zeros(32, 20_000), "head/kernel": zeros(1, 20_000)}
UNFILLED: list[tuple[Write, str]] = [
    *((npz({"embedding/kernel": zeros(*shape)}), "embedding/kernel") for shape in KERNELS),
    (npz({"embedding/kernel": zeros(1, 1, 1, 200_000)}), "parameters in"),
    (npz({"pre_logits/kernel": zeros(1, 200_000)}), "parameters in"),
    (npz({"head/kernel": zeros(1, 200_000)}), "parameters in"),
    (npz(WIDE), "parameters in"),
    (claiming("learned", 60_000), "blocks, but the file holds"),
    (claiming("none", 60_000), "images of 10,800,000,000 values"),
    (claiming("relative", 8_000), "blocks, but the file holds"),
]


# Into a model, and where the file alone says what is built.
FILES = [*((*row, None) for row in HOSTILE), *((*row, load) for row in UNFILLED)]


@pytest.mark.parametrize(("write", "message", "read"), FILES, ids=[row[1] for row in FILES])
def test_hostile_files(write: Write, message: str, read: Any, tmp_path: Path, check: Check) -> None:
    check(write(tmp_path), message, read)


def test_what_is_read_all_the_same(tmp_path: Path) -> None:
    kernel = np.full((32, 5), 3e38, "float32")  # their sum overflows
    load_weights(small(), changed(saved(tmp_path), {"head/kernel": kernel}))
    arguments = {"num_heads": "many", "depth": 10**9, "activation": 3}
    others = {"grid": [10**9, -1], "image_size": "large", "class_names": [1, 2]}
    model = load(noted(saved(tmp_path), {"arguments": arguments, **others}))
    assert (model.depth, model.num_heads, model.activation) == (2, 4, "gelu_tanh")
    assert model.class_names is None
    file = saved(tmp_path, "huggingface")
    for name in ("config.json", "preprocessor_config.json", "SHA256SUMS"):
        os.mkfifo(tmp_path / name)
    assert load(file).hidden_dim == 32


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keras") / "model.keras"
    small().save(file)
    return file


def rewritten(old: Path, file: Path, config=None, weights=None, method=0, **entries: Any) -> Path:
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
            del opened[HEAD]
            weights(opened)
        content["model.weights.h5"] = h5.read_bytes()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in {**content, **entries}.items():
            archive.writestr(name, data)
    return file


MORE = {"times": 4, "slack": 2_000_000}  # of memory, for what HDF5 and Keras need
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
    resized = load(pristine, input_shape=(48, 48, 3)).load_report.resized
    assert resized == ("position_embedding",)
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
HOSTILE_KERAS: list[tuple[dict[str, Any], str]] = [
    *(({"config": changes}, message) for changes, message in CLAIMS),
    *(({"config.json": json.dumps(whole).encode()}, NOT_OURS) for whole in WHOLE),
    *(({"config.json": text}, "does not describe a model") for text in TEXTS),
    ({"../../evil": b"x"}, r"holds \.\./\.\./evil, config"),
    ({"assets/x": b"x"}, "holds assets/x"),
    ({"model.weights.h5": NO_H5}, "not a whole HDF5 file"),
    ({"config.json": b" " * (2**25 + 1)}, "config.json of .* has 33,554,433 bytes"),
    ({"method": zipfile.ZIP_DEFLATED, "metadata.json": bytes(10**8)}, "to exhaust the memory"),
]


@pytest.mark.parametrize(("changes", "message"), HOSTILE_KERAS, ids=range(len(HOSTILE_KERAS)))
def test_hostile_keras_files(changes: Any, message: str, pristine, tmp_path, check: Check) -> None:
    check(file := rewritten(pristine, tmp_path / "m.keras", **changes), message, load, **MORE)
    if message in (LARGER, UNREADABLE, DTYPE):
        refused(message, load_weights, small(), file)


HEAD = "layers/dense/vars/0"


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(shape=(32, 5), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/elsewhere.h5", "data", shape=(32, 5))
    file.create_virtual_dataset(HEAD, layout)


def _unallocated(file: Any) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((2**30, 2**10))
    h5py.h5d.create(file["layers/dense/vars"].id, b"0", h5py.h5t.IEEE_F32LE, space, plan)


def _replaced(value: Any) -> Callable[[Any], None]:
    return lambda file: file.__setitem__(HEAD, value(file))


def _created(**options: Any) -> Callable[[Any], None]:
    return lambda file: file.create_dataset(HEAD, **options)


SQUARE = {"data": np.broadcast_to(np.float32(0), (2**12, 2**12)), "compression": "gzip"}
PASSWORDS = {"shape": (32, 5), "dtype": "f4", "external": [("/etc/passwd", 0, 640)]}
ESCAPE = "\x1b[2J\nred"
LINK, ELSEWHERE = "is a link to elsewhere", "has its data elsewhere"
H5_ATTACKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "external link": (_replaced(lambda _: h5py.ExternalLink("/etc/other.h5", "/x")), LINK),
    "soft link": (_replaced(lambda _: h5py.SoftLink("/layers")), LINK),
    "hard link": (_replaced(lambda file: file["layers"]), "second name of another entry"),
    "cycle": (lambda f: f["layers"].__setitem__("again", f["/"]), "second name of another entry"),
    "virtual": (_virtual, ELSEWHERE),
    "raw data of another file": (_created(**PASSWORDS, data=None), ELSEWHERE),
    "size without data": (_unallocated, "declares shape .* but 0 are stored"),
    "compressed bomb": (_created(**SQUARE), "declares arrays of"),
    "text": (_replaced(lambda _: "text"), "weights are numbers"),
    "objects": (_created(shape=(32,), dtype=h5py.ref_dtype), "weights are numbers|stored"),
    "missing": (lambda _: None, "cannot be read by Keras|not the array before it"),
    "escape": (lambda f: f["layers"].__setitem__(ESCAPE, h5py.SoftLink("/x")), r"x1b\[2J"),
}


@pytest.mark.parametrize("attack", H5_ATTACKS)
def test_what_hdf5_can_do_beside_arrays(attack: str, pristine, tmp_path, check: Check) -> None:
    weights, message = H5_ATTACKS[attack]
    check(rewritten(pristine, tmp_path / "m.keras", weights=weights), message, load, **MORE)
    # The same HDF5 as a file of weights.
    weights_file = (tmp_path / "m.h5").rename(tmp_path / "m.weights.h5")
    refused(message, load_weights, small(), weights_file)


def _quantized(mode: str) -> Any:
    model = fresh()
    model.quantize(mode)
    return model


# Beside all kinds, in `tests/models/test_common.py`.
HONEST: dict[str, Callable[[], Any]] = {
    "merging": lambda: small(position_embedding="sincos2d", token_merging=2),
    "any size": lambda: small(input_shape=(None, None, 3)),
    "channels_first": lambda: small(input_shape=(3, 32, 64), data_format="channels_first"),
    "one value": lambda: small(hidden_dim=1, num_heads=1, mlp_dim=1, num_classes=1),
    "bit v1": lambda: BiTResNet(depths=(2,), width=32, version=1, input_shape=(32, 32, 3)),
    "bfloat16": lambda: small(dtype="bfloat16"),
    "int8": lambda: _quantized("int8"),
    "int4": lambda: _quantized("int4"),  # two values in a byte
    "policies": lambda: small(dtype=keras.dtype_policies.DTypePolicyMap("float32")),
}


@pytest.mark.filterwarnings("ignore:Layer")  # that have nothing to quantize
@pytest.mark.parametrize("kind", HONEST)
def test_honest_models_pass(kind: str, tmp_path: Path) -> None:
    model = HONEST[kind]()
    if not isinstance(model, VisionTransformer):
        fill(model)
    model.save(tmp_path / "model.keras")
    np.testing.assert_equal(load(tmp_path).get_weights(), model.get_weights())
