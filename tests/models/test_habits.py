"""What a user of `keras.applications` does with a model, done with every family of ours."""

import copy
import gc
import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import ImageModel
from tests.backend import numpy, refused, reloaded, rows
from tests.bank import KIND_SIZES
from tests.layers.cases import quantizer
from tests.models.test_common import JIT, ONE_BLOCK, build, pixels, predict

# Every layer that the package has, in small models.
MERGING = {"depth": 2, "token_merging": 3}
TOKENS = ("token", "map", "all_tokens", "relative", "dinov2_giant")
ARCHITECTURES = ("token", "hybrid", "mixer", "bit")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in (*TOKENS, *ARCHITECTURES[1:])},
    "merging": ("token", {**MERGING, "patch_dropout": 0.2, "remat": True}),
    "merging, all tokens": ("all_tokens", MERGING),
}
IMAGES = pixels(4, 32, 32, 3)


def make(family: str = "token", **changes: Any) -> ImageModel:
    kind, arguments = FAMILIES[family]
    return build(kind, **{**ONE_BLOCK.get(kind, {"depth": 1}), **arguments, **changes})


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def outputs(model: keras.Model) -> list[np.ndarray]:
    return [numpy(x) for x in keras.tree.flatten(model(IMAGES))]


def assert_equal_outputs(one: keras.Model, other: keras.Model) -> None:
    for a, b in zip(outputs(one), outputs(other), strict=True):
        assert np.abs(a).max() > 0
        np.testing.assert_array_equal(a, b)


def fit_once(model: keras.Model, images: np.ndarray = IMAGES) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT)
    history = model.fit(images, np.arange(len(images)) % 3, batch_size=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_models_built_on_ours_are_saved_reloaded_and_copied(family: str, tmp_path: Path) -> None:
    base, model = make(family, num_classes=0), make(family)
    middle = model.get_layer("stage_1_unit_1" if family == "bit" else "block_0")
    features = ["stage_1" if family == "bit" else "block_0", "pooled"]
    means = {3: keras.layers.GlobalAveragePooling1D(), 4: keras.layers.GlobalAveragePooling2D()}
    vector = means.get(len(base.output.shape), keras.layers.Identity())(base.output)
    head = keras.Model(base.input, keras.layers.Dense(3)(vector))
    grid = model.feature_model(features, format="grid")
    cut = keras.Model(model.input, middle.output)
    stacked = keras.Sequential([keras.Input((32, 32, 3)), base, keras.layers.Dense(3)])
    for each in (head, cut, model.feature_model(features, format="tokens"), grid, stacked):
        assert_equal_outputs(reloaded(each, tmp_path), each)
    made = [keras.Model.from_config(head.get_config()), keras.models.clone_model(head)]
    for each in made:
        each.set_weights(head.get_weights())
    for each in (*made, copy.deepcopy(head)):
        assert_equal_outputs(each, head)


@pytest.mark.every_backend
def test_a_frozen_base_is_trained_under_a_new_head(tmp_path: Path) -> None:
    base = make(num_classes=0)
    base.trainable = False
    images = keras.Input((32, 32, 3))
    model = keras.Model(images, keras.layers.Dense(3)(base(images, training=False)))
    before = base.get_weights()
    fit_once(model)
    assert all(map(np.array_equal, before, base.get_weights()))
    loaded = reloaded(model, tmp_path)
    assert [len(each.trainable_variables) for each in (model, loaded)] == [2, 2]
    assert_equal_outputs(loaded, model)
    base.trainable = True
    fit_once(model)
    assert not all(map(np.array_equal, before, base.get_weights()))


INSIDE = {"token": "block_0/mlp", "hybrid": "block_0/attention/query_key_value"}
INSIDE |= {"mixer": "block_0/token_mixing", "bit": "stage_1_unit_1/conv_1"}


def trainable(model: keras.Model) -> list[str]:
    return sorted(variable.path for variable in model.trainable_variables)


@pytest.mark.backends("tensorflow")  # whose layers set nothing that is set already
@pytest.mark.parametrize("frozen", ["inside", "all but it", "all"])
def test_freezing_inside_a_block_is_kept(architecture: str, frozen: str, tmp_path: Path) -> None:
    model = make(architecture)
    everything = trainable(model)
    for layer in model.layers if frozen == "all but it" else []:
        layer.trainable = False
    inside = next(one for one in model._flatten_layers() if one.path == INSIDE[architecture])
    inside.trainable = frozen == "all but it"
    if frozen == "all":
        model.trainable = False
    kept = trainable(model)
    assert len(kept) < len(everything)
    assert (len(kept) == 0) == (frozen == "all")
    copies = [model.copy(), model.with_input_shape((32, 32, 3)), keras.models.clone_model(model)]
    for other in (reloaded(model, tmp_path), *copies):
        assert trainable(other) == kept
    head = ["head/bias", "head/kernel"]  # the new one is trained, whatever was frozen
    assert trainable(model.with_classifier(7)) == sorted({*kept, *head})
    model = reloaded(model, tmp_path)
    model.trainable = False
    model.trainable = True  # the second phase of fine-tuning
    assert trainable(model) == everything
    assert model.get_config()["frozen"] == []


@pytest.mark.backends("tensorflow", "torch")
def test_a_block_a_base_and_a_feature_model_thaw_as_a_whole() -> None:
    model = make()
    everything, block = trainable(model), model.get_layer("block_0")
    for part, whole in ((block.attention, block), (block.mlp.dense_0, block.mlp)):
        part.trainable = False
        assert model.get_config()["frozen"] == [part.path]
        whole.trainable = True
        assert trainable(model) == everything
    features, images = model.feature_model("pre_logits"), keras.Input((32, 32, 3))
    for base in (model, features, None):
        for layer in model.layers:
            layer.trainable = False
        around = keras.Model(images, model(images))
        if base is None:  # Keras ignores True for True of a plain model on TensorFlow
            around.trainable = False
        thawed = around if base is None else base
        thawed.trainable = True
        expected = [path for path in everything if "head" not in path or base is not features]
        assert trainable(around) == expected


def quantized(model: ImageModel, *args: Any, **options: Any) -> ImageModel:
    gc.freeze()  # Keras collects garbage once per kernel that it deletes: a third of a second each
    model.quantize(*args, **options)
    gc.unfreeze()
    return model


INT8 = [(kind, "int8") for kind in ARCHITECTURES]
QUANTIZED = rows([*INT8, ("token", "int4"), ("mixer", "float8")], INT8[:1])


@pytest.mark.parametrize(("architecture", "mode"), QUANTIZED)
def test_a_quantized_model_is_saved_copied_and_gets_a_new_head(
    architecture: str, mode: str, tmp_path: Path
) -> None:
    model = make(architecture)
    exact = outputs(model)[0]
    quantized(model, mode)
    assert (outputs(model)[0] != exact).any()
    for other in (reloaded(model, tmp_path), model.copy(), reloaded(model.copy(), tmp_path)):
        assert other.get_layer("head").quantization_mode == mode
        assert_equal_outputs(other, model)
    headed = model.with_classifier(3)
    assert len(headed.get_layer("head").trainable_variables) == 2
    assert_equal_outputs(headed.feature_model("pre_logits"), model.feature_model("pre_logits"))
    assert headed.copy().get_layer("head").quantization_mode is None
    refused("copy before you quantize", model.copy, dtype="mixed_bfloat16")


@pytest.mark.parametrize("whose", ["ours", "Keras's"])
def test_layers_that_a_filter_leaves_out_are_not_quantized(whose: str) -> None:
    if "filters" not in inspect.signature(keras.Model.quantize).parameters:
        pytest.skip("not in this version of Keras")
    model = make()
    model = model if whose == "ours" else keras.Model(model.input, model.output)
    quantized(model, "int8", filters=lambda layer: layer.name not in ("dense_1", "head"))
    dense = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Dense)]
    assert {one.name for one in dense if one.quantization_mode is None} == {"dense_1", "head"}
    quantized(model, "int8", filters="head")
    assert model.get_layer("head").quantization_mode == "int8"


def test_quantizers_of_text_are_refused() -> None:
    for name in ("GPTQConfig", "AWQConfig"):
        model, config = make(), quantizer(name, dataset=list(IMAGES), tokenizer=str)
        refused(r'token ids.*Give "int8", "int4" or "float8"', model.quantize, config=config)
        assert model.get_layer("head").quantization_mode is None


def test_outputs_are_float32_under_every_policy_of_the_program() -> None:
    for policy in ("mixed_bfloat16", "bfloat16", "float64"):
        keras.config.set_dtype_policy(policy)
        model = make()
        assert model.get_layer("block_0").dtype_policy.name == policy
        assert keras.backend.standardize_dtype(model(IMAGES).dtype) == "float32"


def test_files_of_others_are_sent_to_the_function_that_reads_them(tmp_path: Path) -> None:
    model = make()
    keras_vit.save_weights(model, tmp_path / "m.safetensors", layout="timm")
    with pytest.raises(ValueError, match=r"keras_vit\.load_weights\(model, '.*m\.safetensors'\)"):
        model.load_weights(tmp_path / "m.safetensors")
    model.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="shape"):  # Keras's own
        model.with_classifier(6).load_weights(tmp_path / "m.weights.h5")


@keras.saving.register_keras_serializable(package="tests")
class Scaled(keras_vit.VisionTransformer):
    def __init__(self, scale: float, num_classes: int = 5, **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, **kwargs)
        self.scale = scale
        self.probe = keras.layers.Dense(2)
        self.probe.build((None, num_classes))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.probe(super().call(inputs, training=training)) * self.scale

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


def test_a_subclass_with_arguments_of_its_own(tmp_path: Path) -> None:
    model = Scaled(3.0, **KIND_SIZES)
    model.get_layer("head").set_weights([np.ones((32, 5)), np.arange(5.0)])
    assert model.hidden_dim == 32
    for other in (reloaded(model, tmp_path), model.copy()):
        assert (type(other), other.scale) == (Scaled, 3)
        assert_equal_outputs(other, model)
    refused(r"'hidden_dm'.*Did you mean 'hidden_dim'", Scaled, scale=3.0, hidden_dm=32)
    refused(r"'scal'.*Did you mean 'scale'", Scaled, scal=3.0)


@pytest.mark.parametrize("architecture", rows(ARCHITECTURES, ["hybrid"]))
def test_channels_first_is_the_default_where_keras_says_so(architecture: str) -> None:
    keras.config.set_image_data_format("channels_first")
    model = make(architecture, input_shape=None)
    assert model.input_shape == (None, 3, 224, 224)
    assert (model.image_size, model.channels) == ((224, 224), 3)
    first = make(architecture, input_shape=(3, 32, 24))
    assert (first.image_size, first.channels) == ((32, 24), 3)
    keras.config.set_image_data_format("channels_last")
    last = make(architecture, input_shape=(32, 24, 3))
    last.set_weights(first.get_weights())
    images, middle = pixels(2, 32, 24, 3), "stage_1" if architecture == "bit" else "block_0"
    found = predict(first, images.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found, predict(last, images), atol=1e-6)
    first, last = (model.feature_model(middle, format="grid") for model in (first, last))
    found = predict(first, images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(found, predict(last, images), atol=1e-5)


def test_an_image_classifier_of_keras_hub_on_a_grid_of_features(tmp_path: Path) -> None:
    keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    model = make(num_classes=0)
    grid = model.feature_model("encoder_norm", format="grid")
    classifier = keras_hub.models.ImageClassifier(backbone=grid, num_classes=3)
    classifier.compile(jit_compile=JIT)
    before = model.get_weights()
    history = classifier.fit(IMAGES, np.arange(4) % 3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert not all(map(np.array_equal, before, model.get_weights()))  # ours, not copies
    assert_equal_outputs(reloaded(classifier, tmp_path), classifier)


def test_a_loaded_model_is_called_before_keras_exports_it(tmp_path: Path, monkeypatch: Any) -> None:
    """As `export(format="onnx")` wants it: "The model provided has never called." """
    loaded, called = reloaded(make(), tmp_path), []
    monkeypatch.setattr(keras.Model, "export", lambda self, *_, **__: called.append(self._called))
    loaded.export(tmp_path / "model.onnx", format="onnx")
    assert called == [True]


@pytest.mark.backends("tensorflow")  # where Keras exports it
def test_export_to_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    loaded = reloaded(make(), tmp_path)
    loaded.export(tmp_path / "saved_model", format="tf_saved_model", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved_model")  # its variables go with it
    answers = served.serve(IMAGES.astype("float32"))
    np.testing.assert_allclose(answers.numpy(), outputs(loaded)[0], atol=1e-5)
