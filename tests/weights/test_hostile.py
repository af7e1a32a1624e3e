"""Broken, foreign and hostile files: a typed error that names the place, and an untouched model."""

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import MLPMixer
from keras_vit.weights import CheckpointError, from_checkpoint, load_weights, save_weights
from keras_vit.weights.variables import canonical_values
from tests.weights.models import saved, small

# Python's own objects for headers and messages, whatever the size of the file.
SLACK = 1_000_000


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return small()


@pytest.fixture
def refused(model: keras.Model) -> Callable[..., None]:
    """Checks that loading raises, names what it should, changes nothing and allocates little."""
    before = canonical_values(model)

    def check(file: Path, message: str = "", error: type[Exception] = CheckpointError) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(error, match=message or None):
                load_weights(model, file)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= 2 * file.stat().st_size + SLACK
        for name, values in canonical_values(model).items():
            np.testing.assert_array_equal(values, before[name], err_msg=name)

    return check


def without_sum(file: Path) -> Path:
    """The file as if another program had written it: no sum catches what follows."""
    file.write_bytes(file.read_bytes().replace(b"keras_vit_sha256", b"another_program_"))
    return file


def changed(file: Path, **arrays: Any) -> Path:
    """The `.npz` file with some arrays replaced, added, or (None) left out."""
    arrays = {name.replace("__", "/"): values for name, values in arrays.items()}
    content = {k: v for k, v in np.load(file).items() if k not in arrays}
    np.savez(file, **content, **{k: v for k, v in arrays.items() if v is not None})
    return file


@pytest.mark.parametrize("layout", ["google", "timm"])
def test_truncation_at_fifty_places(layout: str, tmp_path: Path, refused: Any) -> None:
    file = without_sum(saved(tmp_path, layout))
    whole = file.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 50):
        file.write_bytes(whole[:place])
        refused(file, "byte|zip")


def test_truncated_torch_files(tmp_path: Path, refused: Any) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.numpy import load_file

    state = load_file(saved(tmp_path, "timm"))
    file = tmp_path / "m.pth"
    torch.save({name: torch.as_tensor(values) for name, values in state.items()}, file)
    whole = file.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 20):
        file.write_bytes(whole[:place])
        refused(file, "PyTorch|zip")


@pytest.mark.parametrize("layout", ["google", "timm"])
def test_bit_flips_never_crash_and_never_half_load(
    layout: str, tmp_path: Path, model: keras.Model
) -> None:
    """Without a checksum: either all is loaded, or nothing with a typed error."""
    file = without_sum(saved(tmp_path, layout))
    whole = bytearray(file.read_bytes())
    random = np.random.default_rng(0)
    before = canonical_values(model)
    # Headers and directories are where a flip does most; .npz notices every flip by its CRC.
    places = np.concatenate([random.integers(0, 2000, 40), random.integers(0, len(whole), 20)])
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << random.integers(8)
        file.write_bytes(flipped)
        try:
            load_weights(model, file)
        except ValueError:
            for name, values in canonical_values(model).items():
                np.testing.assert_array_equal(values, before[name])
        else:
            before = canonical_values(model)


def test_pickles_in_npz_are_never_read(tmp_path: Path, refused: Any) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "was-here").touch, ())

    refused(changed(saved(tmp_path), cls=np.array([Attack()], dtype=object)), "'cls' holds object")
    refused(changed(saved(tmp_path), cls=np.array(["text"])), "'cls' holds <U4")
    assert not (tmp_path / "was-here").exists()


def test_pickles_in_torch_files_are_never_run(tmp_path: Path, refused: Any) -> None:
    torch = pytest.importorskip("torch")

    class Attack:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was-here",))

    torch.save({"cls_token": Attack()}, tmp_path / "m.pth")
    refused(tmp_path / "m.pth", r"^(?!.*weights_only).*holds Python objects \(\S+\)")
    assert not (tmp_path / "was-here").exists()


def test_zip_bombs(tmp_path: Path, refused: Any) -> None:
    file = tmp_path / "m.npz"
    np.savez_compressed(file, **{"embedding/kernel": np.zeros((16, 16, 3, 100_000), "float32")})
    refused(file, "declares arrays of 307,200,")
    # The directory lies about the size; the header of the array shows what will come.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        header = str({"descr": "<f4", "fortran_order": False, "shape": (2**40,)}).ljust(117) + "\n"
        archive.writestr("cls.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode())
    refused(file, "'cls' declares shape")


def test_a_zip_directory_that_is_the_bomb(tmp_path: Path, refused: Any) -> None:
    file = tmp_path / "m.npz"
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(5_000):
            archive.writestr(f"array-number-{i}.npy", b"")
    refused(file, "zip directory")


def test_safetensors_headers(tmp_path: Path, refused: Any) -> None:
    file = tmp_path / "m.safetensors"

    def write(header: Any, data: bytes = b"") -> None:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def tensor(shape: Any, begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    file.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    refused(file, "header of 1,152,921,504,606,846,976 bytes at byte 0")
    write(b"[" * 50_000)
    refused(file, "invalid JSON .* expected struct")
    write(b"[]")
    refused(file, "invalid JSON .* expected struct")
    write({"a": tensor([2**40], 0, 2**42)})
    refused(file, "0 of data.* file not fully covered")
    write({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12))
    refused(file, "invalid offset for tensor `b`")
    write({"a": tensor([3], 0, 8)}, bytes(8))
    refused(file, "invalid shape, data type, or offset")
    write({"a": tensor([-2], 0, -8)})
    refused(file, "invalid value: integer `-2`, .* column 63")
    write({"a": tensor([2], 0, 8, "F99")}, bytes(8))
    refused(file, "unknown variant `F99`")
    write(b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": 1}', bytes(4))
    refused(file, "invalid type: integer `1`, expected struct")


def test_two_arrays_of_one_name(tmp_path: Path, refused: Any) -> None:
    file = without_sum(saved(tmp_path))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cls.npy", archive.read("cls.npy"))
    refused(file, "2 arrays named 'cls.npy'")


def test_two_names_of_one_tensor(tmp_path: Path, refused: Any) -> None:
    from safetensors.numpy import load_file, save_file

    file = saved(tmp_path, "timm")
    tensors = load_file(file)
    tensors["module.head.bias"] = tensors["head.bias"]
    save_file(tensors, file)
    refused(file, "both mean 'head.bias'")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value: float, tmp_path: Path, refused: Any) -> None:
    kernel = np.ones((32, 5), "float32")
    kernel[3, 2] = value
    refused(changed(saved(tmp_path), head__kernel=kernel), r"'head/kernel' holds .* at \(3, 2\)")


def test_large_numbers_are_numbers(tmp_path: Path, model: keras.Model) -> None:
    kernel = np.full((32, 5), 3e38, "float32")  # their sum overflows
    load_weights(small(), changed(saved(tmp_path), head__kernel=kernel))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"cls": np.zeros((1, 1, 31), "float32")}, r"'cls' is class_token of shape \(1, 1, 31\)"),
        ({"cls": np.zeros((32,), "float32")}, "'cls'"),
        ({"cls": np.zeros((1, 1, 32), "int32")}, "'cls' holds int32"),
        ({"cls": np.zeros((1, 1, 32), "complex64")}, "'cls' holds complex64"),
        ({"cls": None}, "class_token|cls"),
        ({"surprise": np.zeros(3, "float32")}, "'surprise' is not part of"),
        ({"embedding__kernel": None}, "'embedding/kernel'|no patch embedding|embedding"),
        (
            {"Transformer__encoderblock_0__MultiHeadDotProductAttention_1__query__kernel":
             np.zeros((32, 32), "float32")},
            "encoderblock_0/MultiHeadDotProductAttention_1/query/kernel",
        ),
        (
            {"Transformer__encoderblock_0__LayerNorm_0__scale": None},
            "'block_0/norm_0/scale' of the model is not in the file|LayerNorm",
        ),
        ({"Transformer__posembed_input__pos_embedding": np.zeros((1, 0, 32), "float32")}, "pos"),
        ({"Transformer__posembed_input__pos_embedding": np.zeros((3, 17, 32), "float32")}, "pos"),
        ({"embedding__kernel": np.zeros((8, 0, 3, 32), "float32")}, "embedding/kernel"),
    ],
)  # fmt: skip
def test_wrong_arrays(arrays: dict[str, Any], message: str, tmp_path: Path, refused: Any) -> None:
    refused(changed(saved(tmp_path), **arrays), message)


@pytest.mark.parametrize("shape", [(0, 8, 3, 32), (8, 8, 3), (8, 8, 3, 0), (2**20, 0, 2**30, 32)])
def test_from_checkpoint_reads_no_impossible_architecture(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    file = changed(saved(tmp_path), embedding__kernel=np.zeros(shape, "float32"))
    with pytest.raises(CheckpointError, match="embedding/kernel"):
        from_checkpoint(file)


@pytest.mark.parametrize(
    "arrays",
    [
        {"embedding__kernel": np.zeros((1, 1, 1, 200_000), "float32")},
        {"pre_logits__kernel": np.zeros((1, 200_000), "float32")},
        {"head__kernel": np.zeros((1, 200_000), "float32")},
        {"pre_logits__kernel": np.zeros((32, 20_000), "float32"),
         "head__kernel": np.zeros((1, 20_000), "float32")},
    ],
)  # fmt: skip
def test_from_checkpoint_builds_no_model_larger_than_its_file(
    arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    file = changed(saved(tmp_path), **arrays)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="parameters in"):
            from_checkpoint(file)
        assert tracemalloc.get_traced_memory()[1] <= 2 * file.stat().st_size + SLACK
    finally:
        tracemalloc.stop()


def test_notes_claim_no_large_model(tmp_path: Path) -> None:
    """Positions and pixels that no tensor of the file stands for."""
    file = saved(tmp_path)
    for arguments, size, message in (
        ({"position_embedding": "learned"}, [60_000, 60_000], "blocks, but the file holds"),
        ({"position_embedding": "none"}, [60_000, 60_000], "images of 10,800,000,000 values"),
        ({"position_embedding": "relative"}, [8_000, 8_000], "blocks, but the file holds"),
    ):
        with zipfile.ZipFile(file, "a") as archive:
            notes = {"arguments": arguments, "image_size": size}
            archive.comment = json.dumps({"keras_vit": notes}).encode()
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError, match=message):
                from_checkpoint(file)
            assert tracemalloc.get_traced_memory()[1] <= 2 * file.stat().st_size + SLACK
        finally:
            tracemalloc.stop()


def test_notes_of_a_file_are_not_believed(tmp_path: Path) -> None:
    file = saved(tmp_path)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = json.dumps(
            {"keras_vit": {"arguments": {"num_heads": "many", "depth": 10**9, "activation": 3},
                           "grid": [10**9, -1], "image_size": "large", "class_names": [1, 2]}}
        ).encode()  # fmt: skip
    model = from_checkpoint(file)
    assert (model.depth, model.num_heads, model.activation) == (2, 4, "gelu_tanh")
    assert model.class_names is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["visual.conv1.weight"], "a CLIP"),
        (["conv_proj.weight"], "torchvision"),
        (["a", "b"], "in no layout that is known"),
        ([], "its first tensors are none"),
    ],
)
def test_other_families_are_named(
    names: list[str], message: str, tmp_path: Path, refused: Any
) -> None:
    np.savez(tmp_path / "m.npz", **{name: np.zeros(2, "float32") for name in names})
    refused(tmp_path / "m.npz", message)


def test_weights_of_another_class(tmp_path: Path, refused: Any) -> None:
    mixer = MLPMixer(patch_size=8, hidden_dim=32, depth=1, input_shape=(32, 32, 3))
    save_weights(mixer, tmp_path / "m.npz", layout="google")
    refused(tmp_path / "m.npz", "weights of MLPMixer, and the model is VisionTransformer")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fc_norm.weight", "does not belong to the model"),
        ("norm_pre.weight", "does not belong to the model"),
        ("blocks.0.attn.q_norm.weight", "normalizes queries and keys"),
        ("blocks.0.attn.norm.weight", "normalizes inside the attention"),
        (
            "blocks.0.attn.rel_pos.weight",
            "'blocks.0.attn.rel_pos.weight' is not part of the 'timm' layout",
        ),
        ("rope.periods", "'rope.periods' is not part of the 'timm' layout"),
    ],
)
def test_what_timms_other_models_have_is_refused_with_the_reason(
    name: str, message: str, tmp_path: Path, refused: Any
) -> None:
    from safetensors.numpy import load_file, save_file

    file = saved(tmp_path, "timm")
    save_file({**load_file(file), name: np.zeros((1, 1, 32), "float32")}, file)
    refused(file, f"{name}.*{message}" if "not part" not in message else message)


def test_a_file_of_vit_pytorch(shared: Path, refused: Any) -> None:
    pytest.importorskip("torch")
    refused(shared / "weights" / "foreign" / "vit_mnist_gpu.pt", "lucidrains")


def test_things_that_are_not_weights(tmp_path: Path, refused: Any) -> None:
    with pytest.raises(FileNotFoundError):
        from_checkpoint(tmp_path / "nowhere.npz")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", "is a folder: give a regular file")
    for name in ("m.npz", "m.safetensors", "m.keras", "m.weights.h5", "m.bin"):
        if name == "m.bin":
            pytest.importorskip("torch")
        (tmp_path / name).write_text("<html>404</html>")
        refused(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
        refused(tmp_path / name)
    (tmp_path / "m.txt").write_text("hello")
    refused(tmp_path / "m.txt", "does not have the suffix of a file of weights")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_vit.weights import writer

    file = saved(tmp_path)
    before = file.read_bytes()

    def fail(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setitem(writer.WRITERS, ".npz", fail)
    with pytest.raises(OSError, match="disk full"):
        writer.save_weights(small(), file, layout="google")
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
