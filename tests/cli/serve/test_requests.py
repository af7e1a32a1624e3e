"""What programs send to `keras-vit serve`: forms, two kinds of JSON, ids; and what strangers do."""

import base64
import json
import re
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from benchmarks import _load as load
from keras_vit._base.errors import printable
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.models.layer_state import weights_digest
from keras_vit.tasks import Classification, PredictionSets, Regression, Segmentation, Task
from keras_vit_cli.predict.schema import Schema
from keras_vit_cli.serve import infer
from keras_vit_cli.serve.model import ServedModel
from keras_vit_cli.serve.traces import tracing
from tests.bank import outputs
from tests.browser import opened
from tests.cli.serve import helpers
from tests.cli.serve.conftest import LIMITS, MAX_BYTES, MAX_IMAGES, Start
from tests.cli.serve.helpers import Server, eventually, form, jpeg, request, save, tiny_model
from tests.data.image_fixtures import write
from tests.models.test_task import TASKS, vit

BROKEN = jpeg()[:-200]
FILES = {"a.jpg": jpeg(1), "broken.jpg": BROKEN, "b.jpg": jpeg(2)}
INFER, PREDICT = "/v2/models/photos/infer", "/v1/models/photos:predict"
TWO = pytest.param(Regression(("tall", "wide")), marks=pytest.mark.thorough)
Rows = list[dict[str, Any]]


def base64_of(contents: bytes) -> str:
    return base64.b64encode(contents).decode()


def post(port: int, path: str, content: Any) -> tuple[int, dict[str, Any]]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return request(port, path, body, Content_Type="application/json")[:2]


def instances(*files: bytes) -> dict[str, Any]:
    return {"instances": [{"b64": base64_of(file)} for file in files]}


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}


@pytest.fixture(scope="module")
def written(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Rows of `keras-vit predict`, with names as printed, but for rounding of other batches."""
    folder = write(tmp_path_factory.mktemp("photos"), FILES)
    rows = keras_vit.predict(file, [folder / name for name in FILES], top=2)
    for row in rows:
        row["file"] = Path(row["file"]).name
        if row["error"] is None:
            shown = [{**p, "class": printable(p["class"])} for p in row["predictions"]]
            row["predictions"] = [pytest.approx(each, abs=1e-5) for each in shown]
    return rows


def unnamed(rows: Rows) -> Rows:
    return [{**row, "file": str(i)} for i, row in enumerate(rows)]


def data_of(answer: dict[str, Any]) -> dict[str, list[Any]]:
    return {output["name"]: output["data"] for output in answer["outputs"]}


def test_forms_and_instances_have_the_rows_of_predict(written: Rows, port: int) -> None:
    body, headers = form(FILES)
    status, content, _ = request(port, "/predict", body, **headers)
    assert (status, content) == (200, {"rows": written, "version": content["version"]})
    assert request(port, "/predict", form({"b": BROKEN})[0], **headers)[0] == 422
    _, content, sent = request(port, "/predict", jpeg(1))
    assert content == {**written[0], "file": "0", "version": content["version"]}
    assert sent["x-content-type-options"] == "nosniff"
    content = {**instances(*FILES.values()), "signature_name": "serving_default"}
    status, answer = post(port, PREDICT, content)
    assert (status, answer.keys()) == (200, {"predictions", "version"})
    assert answer["predictions"] == unnamed(written)
    assert post(port, PREDICT, instances(BROKEN))[0] == 200  # a list stays one
    texts = [base64_of(jpeg(1)), "not base64!", "", "é", base64_of(b"no image")]
    status, answer = post(port, PREDICT, {"instances": [{"b64": text} for text in texts]})
    assert status == 200
    first, *errors = [row["error"] for row in answer["predictions"]]
    assert first is None
    reasons = ["not base64", "is empty", "not base64", "not a JPEG"]
    for error, reason in zip(errors, reasons, strict=True):
        assert reason in error


def test_files_in_tensors(written: Rows, port: int) -> None:
    contents = list(map(base64_of, FILES.values()))
    sent = {"id": "job\ud800\x1b", **tensor("contents", "BYTES", [3], contents)}
    sent["model_name"] = "photos"
    status, answer = post(port, INFER, sent)
    assert (status, answer["id"], answer["model_name"]) == (200, "job\ud800\x1b", "photos")
    _, column = post(port, INFER, {**sent, **tensor("contents", "BYTES", [3, 1], contents)})
    assert list(map(json.loads, data_of(column)["rows"])) == unnamed(written)
    data = data_of(answer)
    rows = list(map(json.loads, data["rows"]))
    assert (data["valid"], rows) == ([True, False, True], unnamed(written))
    values = np.reshape(data["probabilities"], (3, 3))
    np.testing.assert_allclose(values.sum(axis=1), [1, 0, 1], atol=1e-5)
    assert values[0].max() == pytest.approx(rows[0]["predictions"][0]["probability"])


def test_sets_novelty_and_pixels_are_tensors(port: int) -> None:
    sets = PredictionSets("lac", 0.9, (0.4, 0.4), 100)
    task = Classification(("cat", "dog"), sets=sets)
    model = ServedModel(task, (8, 8), 3, EvalTransform(), "keras", "", np.zeros, novelty=True)
    described = infer.describe_tensors(model)["outputs"]
    shapes = [(each["name"], each["datatype"], each["shape"]) for each in described[3:]]
    assert shapes == [("in_set", "INT32", [-1, 2]), ("novelty", "FP32", [-1])]
    answers = [np.array([0.9, 0.1, 0.5]), "cut off", np.array([0.5, 0.5, 1.5])]
    rows = [Schema(task, 2, novelty=True).row("a.jpg", answer) for answer in answers]
    names = tuple(each["name"] for each in described)
    asked = infer.InferRequest(None, [], names)
    data = data_of(infer.infer_answer(asked, model, answers, rows)[0])
    assert (data["valid"], data["in_set"]) == ([True, False, True], [1, 0, 0, 0, 1, 1])
    assert (data["novelty"], data["probabilities"]) == ([0.5, 0, 1.5], [0.9, 0.1, 0, 0, 0.5, 0.5])
    model, files = tiny_model(), (jpeg(1), jpeg(2))
    options = {"transform": model.eval_transform}
    pixels = np.stack([prepare_contents(file, (32, 24), **options) for file in files])
    for name, datatype, images in (
        ("images", "UINT8", np.round(pixels).astype("uint8")),
        ("pixels", "FP32", pixels.astype("float64")),
    ):
        sent = tensor(name, datatype, list(images.shape), images.ravel().tolist())
        status, answer = post(port, INFER, {**sent, "outputs": [{"name": "probabilities"}]})
        assert (status, [*data_of(answer)]) == (200, ["probabilities"])
        values = np.reshape(answer["outputs"][0]["data"], (2, 3))
        expected = model.task.answers(outputs(model, images.astype("float32")))
        np.testing.assert_allclose(values, expected, atol=1e-5)
    # Those of another scale are rows with a reason.
    good = pixels[0].astype("float64")
    images = np.stack([good, good / 255, good - 128, good * 1e3, good])
    sent = tensor("pixels", "FP32", list(images.shape), images.ravel().tolist())
    status, answer = post(port, INFER, sent)
    data = data_of(answer)
    assert (status, data["valid"]) == (200, [True, False, False, False, True])
    for row in map(json.loads, data["rows"][1:4]):
        assert re.fullmatch(r"its values range from .*: give pixels from 0 to 255", row["error"])


def test_tensors_in_binary(port: int) -> None:
    """As Triton's clients send and read them: behind the JSON, whose bytes a header has."""

    def sent(name: str, datatype: str, shape: Any, tail: bytes, size: Any, **more: Any) -> Any:
        one = {"name": name, "datatype": datatype, "shape": list(shape), **more}
        one["parameters"] = {"binary_data_size": size}
        head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
        return request(port, INFER, head + tail, Inference_Header_Content_Length=str(len(head)))

    def packed(*files: bytes) -> bytes:
        return b"".join(len(file).to_bytes(4, "little") + file for file in files)

    def rounded(row: str) -> str:  # of a batch of another size
        return re.sub(r"\d\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.5f}", row)

    levels = np.random.default_rng(0).integers(0, 256, (2, 32, 24, 3)).astype("uint8")
    parts = (levels * 0.99).astype("float32")
    files = (jpeg(1), BROKEN, jpeg(2))
    for name, datatype, shape, data, tail in (
        ("contents", "BYTES", [3], list(map(base64_of, files)), packed(*files)),
        ("images", "UINT8", levels.shape, levels.ravel().tolist(), levels.tobytes()),
        ("pixels", "FP32", parts.shape, parts.ravel().tolist(), parts.astype("<f4").tobytes()),
    ):
        expected = data_of(post(port, INFER, tensor(name, datatype, list(shape), data))[1])
        status, answer, headers = sent(name, datatype, shape, tail, len(tail))
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        rest = answer["tail"]
        for output in answer["outputs"]:
            size = output["parameters"]["binary_data_size"]
            part, rest = rest[:size], rest[size:]
            values = expected[output["name"]]
            if output["datatype"] == "BYTES":
                found = []
                while part:
                    end = 4 + int.from_bytes(part[:4], "little")
                    found, part = [*found, part[4:end].decode()], part[end:]
                assert list(map(rounded, found)) == list(map(rounded, values))
            else:
                dtype = {"FP32": "<f4", "BOOL": "?"}[output["datatype"]]
                values = np.array(values, dtype)  # perhaps of a batch of another size
                np.testing.assert_allclose(np.frombuffer(part, dtype), values, rtol=1e-5)
        assert rest == b""
    parts[1, 0, 0, 0] = np.nan
    _, answer, _ = sent("pixels", "FP32", parts.shape, parts.tobytes(), parts.nbytes)
    assert b"its values range from nan to nan: give pixels" in answer["tail"]
    whole, size = levels.tobytes(), levels.nbytes
    for *arguments, reason in (
        (levels.shape, whole, size - 1, "binary_data_size 4607, and 4,608 follow"),
        (levels.shape, whole, None, "is followed by 4,608 bytes without a binary_data_size"),
        (levels.shape, whole, "4608", 'binary_data_size "4608"'),
        ([1, 32, 24, 3], whole, size, "has 4,608 bytes in binary, and its shape 2,304"),
    ):
        status, answer, _ = sent("images", "UINT8", *arguments)
        assert (status, reason in answer["error"]) == (400, True), answer
    for tail in (packed(*files)[:-1], packed(*files, b""), packed(files[0])):
        status, answer, _ = sent("contents", "BYTES", [3], tail, len(tail))
        assert (status, "of BYTES in binary" in answer["error"]) == (400, True), answer
    for length in ("-1", "9" * 30, "1e2", "99999"):
        header = {"Inference_Header_Content_Length": length}
        status, answer, _ = request(port, INFER, b"{}", **header)
        assert (status, "and the body has 2 bytes" in answer["error"]) == (400, True)
    assert request(port, "/v2")[1]["extensions"] == ["binary_tensor_data"]
    status, ready, _ = request(port, "/v2/models/photos/ready")
    assert (status, ready) == (200, {"name": "photos", "ready": True})


SHAPE = [1, 32, 24, 3]
SHAPES: list[list[int]] = [[32, 24, 3], [-1, 32, 24, 3], [True, 32, 24, 3]]
BLACK = [0] * (32 * 24 * 3)
U8 = ("images", "UINT8", SHAPE)
FILE = base64_of(jpeg())
NO_JSON = (b"", jpeg(), b"[" * 250, b"9" * 5000, b"\xff\xfe{}")
LOGITS = {"outputs": [{"name": "logits"}]}


def test_what_is_refused(port: int) -> None:
    for path, content, status, reason in (
        *((PREDICT, body, 400, "The body is not ") for body in NO_JSON),
        (PREDICT, b"[" * 300_000, 400, "lists in lists"),
        (PREDICT, {str(i): 0 for i in range(20_000)}, 413, "more parts than one of 10 images"),
        (PREDICT, b'{"instances": [NaN]}', 400, "NaN is not a number of JSON"),
        (PREDICT, [1], 400, "not a JSON object"),
        (PREDICT, {"inputs": {"b64": FILE}}, 400, 'The body has "inputs"'),
        (PREDICT, {"\x1b[2J" + "k" * 300_000: 1}, 400, "The body has"),
        *((PREDICT, {"instances": value}, 400, "not a list of images") for value in ([], "x")),
        (PREDICT, {"instances": [FILE]}, 400, "instances[0] is not a JSON object"),
        (PREDICT, {"instances": [{"b64": FILE}, {}]}, 400, 'instances[1]["b64"] is not a text'),
        (PREDICT, {"instances": [{"b64": FILE, "url": "file:///etc/passwd"}]}, 400, '"url"'),
        (PREDICT, {**instances(), "signature_name": "images"}, 400, 'no signature "images"'),
        (PREDICT, instances(*[b""] * 11), 413, "more than 10 images"),
        (PREDICT, {"instances": [{"b64": "A" * MAX_BYTES}]}, 413, "more than 400000 bytes"),
        *((INFER, body, 400, "not a list of one tensor") for body in ({}, {"inputs": []})),
        (INFER, {"inputs": [1]}, 400, "inputs[0] is not a JSON object"),
        (INFER, {"id": 7, "inputs": []}, 400, '"id" is not a text'),
        (INFER, {"inputs": [], "binary": 1}, 400, '"binary"'),
        (INFER, tensor("images", "INT64", SHAPE, BLACK), 400, 'of datatype "INT64"'),
        (INFER, tensor(["images"], "UINT8", SHAPE, BLACK), 400, 'no input ["images"]'),
        (INFER, tensor("images", "UINT8", [1, 24, 32, 3], BLACK), 400, "[1, 24, 32, 3]"),
        *((INFER, tensor("images", "UINT8", of, BLACK), 400, "has the shape") for of in SHAPES),
        (INFER, tensor("images", "UINT8", [0, 32, 24, 3], []), 400, "has the shape"),
        (INFER, tensor("images", "UINT8", [10**30, 32, 24, 3], []), 413, "10 images"),
        (INFER, tensor("images", "UINT8", SHAPE, BLACK[1:]), 400, "list of 2304 values"),
        *((INFER, tensor(*U8, [w, *BLACK[1:]]), 400, "from 0 to 255") for w in (256, 0.5)),
        *((INFER, tensor(*U8, [w, *BLACK[1:]]), 400, "not a number") for w in ("0", True)),
        (INFER, tensor("pixels", "FP32", SHAPE, [10**400, *BLACK[1:]]), 400, "not a number"),
        (INFER, tensor("images", "UINT8", SHAPE, [[0] * 2304]), 400, "not a flat list"),
        (INFER, tensor("images", "UINT8", SHAPE, ["0"] * 2304), 400, "or numbers in quotes"),
        (INFER, tensor("contents", "BYTES", [1], [7]), 400, "not a text in base64"),
        (INFER, {**tensor("contents", "BYTES", [1], [FILE]), **LOGITS}, 400, 'no output "logits"'),
    ):
        answered, answer = post(port, path, content)
        assert (answered, answer.keys()) == (status, {"error", "type"}), answer
        assert answer["type"] == {400: "bad_request", 413: "too_large"}[status]
        assert reason in answer["error"]
        assert len(answer["error"]) < 600
        assert answer["error"].isprintable()
        if status == 400:  # what would be accepted
            assert re.search('Send {"in|name probabilities, valid, rows', answer["error"])
    # Limits hold for every way in.
    bomb = load.bomb()
    body, headers = form({"a": bomb, "b": jpeg()})
    of_form = request(port, "/predict", body, **headers)[1]["rows"]
    for first, second in (of_form, post(port, PREDICT, instances(bomb, jpeg()))[1]["predictions"]):
        assert "more than --max-pixels 100000" in first["error"]
        assert second["error"] is None
    for count, expected in ((MAX_IMAGES, 200), (MAX_IMAGES + 1, 413), (10_000, 413)):
        body, headers = form({str(i): b"x" for i in range(count)})
        assert request(port, "/predict", body, **headers)[0] == expected
    body, headers = form({"a": b"x", "b": b"x"})
    assert request(port, "/attention", body, **headers)[0] == 413


TRICKS = """nothing .. ../photos ..%2f..%2fetc%2fpasswd %2e%2e photos%00 photos/.. photos:predict
photos%0d%0aX-Evil:%201 photos.keras"""


def test_what_the_model_is_and_tricks_in_its_name(file: Path, port: int) -> None:
    status, model, _ = request(port, "/v1/models/photos")
    version = request(port, "/health")[1]["version"]
    assert (status, model["name"], model["version"]) == (200, "photos", version)
    assert model["sha256"] == weights_digest(keras_vit.load(file))
    _, tensors, _ = request(port, "/v2/models/photos")
    inputs = [(each["name"], each["shape"]) for each in tensors["inputs"]]
    assert inputs == [("contents", [-1]), ("images", [-1, 32, 24, 3]), ("pixels", [-1, 32, 24, 3])]
    for name in (*TRICKS.split(), "p" * 10_000, ""):
        v1, v2 = f"/v1/models/{name}", f"/v2/models/{name}"
        calls: dict[str, bytes | None] = {v1: None, v2: None, f"{v2}/ready": None}
        calls |= {f"{v1}:predict": b"{}", f"{v2}/infer": b"{}", "/predict/": b""}
        for path, body in calls.items():
            status, content, headers = request(port, path, body)
            assert status in (404, 405), (path, content)
            assert content["type"] in ("not_found", "method_not_allowed")
            assert content["error"].isprintable()
            assert "x-evil" not in headers


def test_ids_are_echoed_or_made(port: int) -> None:
    def sent_back(**headers: str) -> str:
        return request(port, "/health", **headers)[2]["x-request-id"]

    for name in ("a", "job-7.2:x/y_z+=", "x" * 128):
        assert sent_back(X_Request_ID=name) == name
    made = [sent_back(X_Request_ID=name) for name in ("", "x" * 129, 'a"b', "a b", "\xe9", "\xe9")]
    made += [sent_back(), sent_back()]
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in made), made
    assert len(set(made)) == len(made)
    for path, body in (("/predict", b"x"), ("/nothing", None), ("/predict", bytes(MAX_BYTES + 1))):
        assert request(port, path, body, X_Request_ID="abc")[2]["x-request-id"] == "abc"
    assert request(port, "/", Host="evil.example", X_Request_ID="abc")[2]["x-request-id"] == "abc"


def test_a_line_of_json_per_request(server: Server) -> None:
    def logged(name: str) -> dict[str, Any]:
        eventually(lambda: any(name in line for line in server.lines))
        (line,) = [line for line in server.lines if name in line]
        assert line.isascii()
        return json.loads(line)

    names = [uuid.uuid4().hex for _ in range(4)]
    body, headers = form({"a.jpg": jpeg(1), "secret-name.jpg": jpeg(2)})
    request(server.port, "/predict", body, X_Request_ID=names[0], **headers)
    line = logged(names[0])
    assert line.keys() == {"time", "id", "method", "path", "status", "images", "milliseconds"}
    assert [line[key] for key in ("id", "path", "images")] == [names[0], "/predict", 2]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["time"])
    request(server.port, "/v1/models/%1b%5b2J%0a%22%e2%80%ae?q=secret-query", X_Request_ID=names[1])
    line = logged(names[1])
    assert (line["path"], line["status"]) == ('/v1/models/\x1b[2J\n"\u202e', 404)
    assert (line["method"], any("secret" in line for line in server.lines)) == ("GET", False)
    request(server.port, "/" + "p" * 5000, X_Request_ID=names[3])
    assert len(logged(names[3])["path"]) == 200


def test_traces(file: Path, start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, exporter = list[str](), "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    monkeypatch.setitem(sys.modules, exporter, None)
    with tracing(lines.append):
        assert "OTLP_ENDPOINT is set; traces need opentelemetry" in lines[0]
    monkeypatch.undo()
    pytest.importorskip(exporter)
    server = start_server("serve", file, "--port", "0", code=helpers.TRACED)
    body, headers = form({"secret.jpg": jpeg(1), "b.jpg": BROKEN})
    sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", **headers}
    version = request(server.port, "/predict", body, **sent)[1]["version"]
    assert server.stop() == 0
    *parts, root = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert root["parent_id"] == f"0x{'b' * 16}"
    assert root["attributes"]["keras_vit.version"] == version
    assert sorted(each["name"] for each in parts) == ["decode", "decode", "predict", "wait"]
    assert {each["parent_id"] for each in parts} == {root["context"]["span_id"]}
    assert parts[-1]["attributes"] == {"batch_size": 1}
    assert "secret" not in str(server.lines)


@pytest.mark.thorough
def test_many_images_leave_room_for_one(file: Path, start_server: Start) -> None:
    server = start_server(file, 0.5, code=helpers.SLOW)  # seconds per batch of two
    body, headers = form({str(i): jpeg(i) for i in range(20)})
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(request, server.port, "/predict", body, **headers)
        eventually(lambda: server.metric("keras_vit_in_progress") == 1, 10)
        assert request(server.port, "/predict", jpeg())[0] == 200
        assert not many.done()  # one image does not wait behind all of ten batches
        status, content, _ = many.result()
    assert (status, len(content["rows"])) == (200, 20)


@pytest.mark.parametrize("task", [TASKS["multilabel"], TWO])
def test_another_task_in_each_way(task: Task, tmp_path: Path, start_server: Start) -> None:
    model = vit(task=task)
    server = start_server(save(model, tmp_path / "photos.keras"), *LIMITS)
    _, one, _ = request(server.port, "/predict", jpeg(1))
    _, listed = post(server.port, PREDICT, instances(jpeg(1)))
    status, tensors = post(server.port, INFER, tensor("contents", "BYTES", [1], [FILE]))
    _, described, _ = request(server.port, "/v1/models/photos")
    looked = request(server.port, "/attention", jpeg(1))
    assert server.stop() == 0
    assert (looked[0], looked[1]["class"] in described["classes"]) == (200, True)
    assert {**one, "version": None} == {**listed["predictions"][0], "version": None}
    assert (status, tensors["outputs"][0]["name"]) == (200, model.task.answer_names[0])
    assert tensors["outputs"][0]["shape"] == [1, model.task.size]
    config = json.loads(json.dumps(model.task.get_config()))
    assert described["task"] == {**config, "names": described["classes"]}


def test_every_pixel_is_a_file(tmp_path: Path, start_server: Start) -> None:
    task = Segmentation(("sky", "tree"), colors=((0, 0, 255), (0, 128, 0)))
    server = start_server(save(vit(task=task), tmp_path / "photos.keras"), *LIMITS)
    status, answer, _ = request(server.port, "/predict", jpeg(1, (60, 50)))
    body, headers = form(FILES)
    rows = request(server.port, "/predict", body, **headers)[1]["rows"]
    page = request(server.port, "/")[1]["text"]
    refused = post(server.port, INFER, tensor("contents", "BYTES", [1], [FILE]))
    assert server.stop() == 0
    assert status == 200
    assert [(row["file"], "maps" in row) for row in rows] == [
        ("a.jpg", True), ("broken.jpg", False), ("b.jpg", True)
    ]  # fmt: skip
    assert "&quot;tree&quot;: &quot;#008000&quot;" in page
    assert (refused[0], "ask POST /predict" in refused[1]["error"]) == (404, True)
    ((kind, url),) = answer["maps"].items()
    head, _, content = url.partition(",")
    assert (kind, head) == ("image/png", "data:image/png;base64")
    with Image.open(BytesIO(base64.b64decode(content))) as shown:
        assert (shown.size, shown.mode) == ((60, 50), "P")
        assert shown.getpalette()[:6] == [0, 0, 255, 0, 128, 0]
        classes = np.array(shown)
    parts = {row["class"]: row["part"] for row in answer["predictions"]}
    assert float((classes == 1).mean()) == pytest.approx(parts["tree"], abs=0.1)


# The page in Chromium: a dropped photograph, the overlay, errors, a phone screen.
DROP = """([content, name]) => {
  const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, {type: "image/jpeg"}));
  document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
}"""


@pytest.fixture(scope="module")
def address(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    server = Server(folder, helpers.SERVE, "serve", file, "--max-bytes", "100000", "--port", "0")
    yield f"http://127.0.0.1:{server.port}/"
    server.stop()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with opened(browser, address, 1000, (address, "data:", "blob:"), expected="422") as page:
        yield page


def drop(page: Any, content: bytes, name: str = "photo.jpg") -> None:
    page.evaluate(DROP, [base64.b64encode(content).decode(), name])


@pytest.mark.parametrize("width", [1000, 390])
def test_a_dropped_photograph(width: int, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    drop(page, jpeg())
    page.wait_for_selector("#look:not([hidden])")
    rows = page.locator("#classes li")
    shown = [float(text.split()[0]) for text in rows.locator(".probability").all_text_contents()]
    assert (len(shown), shown) == (3, sorted(shown, reverse=True))
    # Bars are as long as the probabilities, and the overlay lies on the image.
    bar, track = (rows.first.locator(n).bounding_box()["width"] for n in (".bar", ".track"))
    assert bar == pytest.approx(track * shown[0] / 100, abs=1)
    assert '<b>"rose"</b>\\x1b[31m' in rows.locator(".class").all_text_contents()
    photo, canvas = (page.locator(name).bounding_box() for name in ("#image", "#overlay"))
    assert canvas == pytest.approx(photo, abs=1)
    shades = page.evaluate(
        "[...at('overlay').getContext('2d').getImageData(0, 0, 3, 4).data]"
        ".filter((_, i) => i % 4 === 3)"
    )
    assert (min(shades), max(shades)) == (0, 190)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.uncheck("#shown")
    assert page.is_hidden("#overlay")


def test_a_chosen_file_and_errors(page: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg())
    page.set_input_files("#file", tmp_path / "a.jpg")
    page.wait_for_selector("#look:not([hidden])")
    drop(page, b"no image", "notes.txt")
    page.wait_for_selector("#status.wrong")
    assert "not a JPEG" in page.text_content("#status")
    assert page.is_hidden("#result")
    drop(page, bytes(100_001))
    page.wait_for_function("at('status').textContent.includes('100,001 bytes')")
    drop(page, jpeg())
    page.wait_for_selector("#look:not([hidden])")
    assert page.text_content("#status") == ""
    row = {"predictions": [{"name": "x", "value": 250000.4}], "novel": True, "novelty": 2.34567}
    row |= {"set": ["a", "b"], "warning": "It has 16 bits."}
    page.route("**/predict", lambda route: route.fulfill(json=row))
    drop(page, jpeg())
    page.wait_for_selector("#status.wrong")
    unlike = "Unlike the training images (novelty 2.346): do not rely on this answer."
    assert page.text_content("#status") == f"{unlike}\nOne of: a, b\nIt has 16 bits."
    assert page.text_content("#classes") == "x250000"
