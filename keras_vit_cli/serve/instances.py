"""The JSON of TensorFlow Serving: a list of image files in base64, a list of rows."""

from keras_vit_cli.serve.images import RefusedError, Upload, check_count
from keras_vit_cli.serve.json_body import check_keys, decoded, json_object, short

SIGNATURE = "serving_default"
ACCEPTED = (
    'Send {"instances": [{"b64": "..."}, ...]}, image files in base64, and no other key but '
    f'"signature_name": "{SIGNATURE}".'
)


def read_instances(body: bytes, max_images: int) -> list[Upload]:
    """Return the images of a request to `:predict`.

    Raises:
        RefusedError: It is not as `ACCEPTED` describes, or has too many images.
    """
    request = json_object(body, ACCEPTED, ("instances", "signature_name"), max_images)
    signature, instances = request.get("signature_name", SIGNATURE), request.get("instances")
    if signature != SIGNATURE:
        raise RefusedError(400, f"There is no signature {short(signature)}. {ACCEPTED}")
    if not isinstance(instances, list) or not instances:
        raise RefusedError(400, f'"instances" is not a list of images. {ACCEPTED}')
    check_count(len(instances), max_images)
    for i, instance in enumerate(instances):
        check_keys(instance, f"instances[{i}]", ACCEPTED, ("b64",))
        if not isinstance(instance.get("b64"), str):
            raise RefusedError(400, f'instances[{i}]["b64"] is not a text. {ACCEPTED}')
    return [Upload(str(i), decoded(each["b64"])) for i, each in enumerate(instances)]
