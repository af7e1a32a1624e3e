"""Reads JSON from untrusted clients; each error shows what would be accepted."""

import base64
import json
from collections.abc import Collection
from typing import Any, NoReturn

from keras_vit._base.errors import printable
from keras_vit_cli.serve.images import FEWER, RefusedError

# Of them, an image takes six as `{"b64": "..."}`; the rest of a request takes fewer than these.
MARKS, MARKS_PER_IMAGE, OTHER_MARKS = (b"[", b"{", b":", b'"'), 8, 200


def json_object(
    body: bytes, accepted: str, keys: Collection[str], max_images: int
) -> dict[str, Any]:
    """Return the JSON object that a body is.

    Args:
        accepted: What the caller takes, as a sentence for the error.
        keys: That the object may have.

    Raises:
        RefusedError: It is not JSON, something else, or has more parts than so many images.
    """
    # Counted before they are read: seven million empty lists fit into 20 MiB, and take 500 MB of
    # memory and seconds during which nothing else is answered.
    if sum(map(body.count, MARKS)) > MARKS_PER_IMAGE * max_images + OTHER_MARKS:
        if body.count(b"[") > OTHER_MARKS or b'"UINT8"' in body or b'"FP32"' in body:
            reason = "The JSON has lists in lists, or numbers in quotes"
            raise RefusedError(400, f"{reason}: a list of numbers is flat. {accepted}")
        reason = f"The JSON has more parts than one of {max_images} images"
        raise RefusedError(413, f"{reason}. {FEWER} {accepted}")
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeError) else f"not JSON: {error}"
        raise RefusedError(400, f"The body is {printable(reason)}. {accepted}") from error
    check_keys(value, "The body", accepted, keys)
    return dict(value)


def check_keys(value: Any, what: str, accepted: str, keys: Collection[str]) -> None:
    """Refuses what is not an object of these keys."""
    if not isinstance(value, dict):
        raise RefusedError(400, f"{what} is not a JSON object. {accepted}")
    if unknown := [key for key in value if key not in keys]:
        first = ", ".join(map(short, unknown[:3]))
        raise RefusedError(400, f"{what} has {first}. {accepted}")


def decoded(text: str) -> bytes | str:
    """Return the bytes that a text is in base64, or the reason why it is not."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        return f"it is not base64, without data:...;base64 in front: {printable(str(error))}"


def short(value: Any) -> str:
    """Return a value of a request for a message: printable, and not as long as the request."""
    if isinstance(value, list) and len(value) > 8:
        value = [*value[:8], "..."]
    try:
        text = json.dumps(value)
    except RecursionError:
        return "lists in lists"
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
