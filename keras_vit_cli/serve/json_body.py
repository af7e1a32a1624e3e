"""JSON of strangers: what is not as documented is refused with what would be."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from typing import Any, NoReturn

from keras_vit._base.errors import printable
from keras_vit_cli.serve.images import RefusedError


def json_object(body: bytes, accepted: str, keys: Collection[str]) -> dict[str, Any]:
    """The JSON object that a body is.

    Args:
        body: Of the request.
        accepted: What the caller takes, as a sentence for the error.
        keys: That the object may have.

    Raises:
        RefusedError: It is not JSON, or something else.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            400, f"The body is not JSON: {printable(str(error))}. {accepted}"
        ) from error
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
    """The bytes that a text is in base64, or the reason why it is not."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        return f"it is not base64: {printable(str(error))}"


def short(value: Any) -> str:
    """A value of a request for a message: printable, and not as long as the request."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "lists in lists"
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
