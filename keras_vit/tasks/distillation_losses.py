"""What a student's outputs learn from a teacher's, task by task: `Task.distillation` has them."""

from typing import Any

from keras import ops

TEMPERATURE = 3.0  # DeiT, section 5.2


def soft_distillation(teacher: Any, student: Any, temperature: float = TEMPERATURE) -> Any:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) of each image.

    The square keeps the gradient's size whatever the temperature.

    Args:
        teacher: The teacher's logits `(batch, classes)`.
        student: The student's logits `(batch, classes)`.
        temperature: T; the higher, the more the classes below the first count.

    Returns:
        `(batch,)`.

    Source: Hinton et al. 2015, section 2; DeiT (Touvron et al. 2021), equation 2.

    >>> import numpy as np
    >>> loss = soft_distillation(np.array([[0.0, 0.0]]), np.array([[0.0, 4.0]]), temperature=2.0)
    >>> round(float(loss[0]), 4)  # 4 log(cosh(1))
    1.7351
    """
    log_p = ops.log_softmax(ops.divide(teacher, temperature))
    log_q = ops.log_softmax(ops.divide(student, temperature))
    return temperature**2 * ops.sum(ops.exp(log_p) * (log_p - log_q), axis=-1)


def hard_distillation(teacher: Any, student: Any) -> Any:
    """Return the crossentropy of each image with the class that the teacher predicts.

    As in DeiT, the label smoothing of the compiled loss does not apply to these labels.

    Args:
        teacher: The teacher's logits `(batch, classes)`.
        student: The student's logits `(batch, classes)`.

    Returns:
        `(batch,)`.

    Source: DeiT (Touvron et al. 2021), equation 3.

    >>> import numpy as np
    >>> loss = hard_distillation(np.array([[0.0, 9.0]]), np.array([[0.0, 0.0]]))
    >>> round(float(loss[0]), 4)  # log 2
    0.6931
    """
    return ops.sparse_categorical_crossentropy(
        ops.argmax(teacher, axis=-1), student, from_logits=True
    )


def label_distillation(teacher: Any, student: Any, temperature: float = TEMPERATURE) -> Any:
    """T^2 KL(sigmoid(teacher / T) || sigmoid(student / T)) of each image, the mean of its labels.

    Args:
        teacher: The teacher's logits `(batch, labels)`.
        student: The student's logits `(batch, labels)`.
        temperature: T, above 0.

    Returns:
        `(batch,)`.

    >>> import numpy as np
    >>> loss = label_distillation(np.array([[0.0]]), np.array([[4.0]]), temperature=2.0)
    >>> round(float(loss[0]), 4)  # 4 log(cosh(1)): a label is a choice of two
    1.7351
    """
    return ops.mean(_binary_divergence(teacher, student, temperature), axis=-1)


def grade_distillation(teacher: Any, student: Any, temperature: float = TEMPERATURE) -> Any:
    """Like `label_distillation` of "above this grade", and the sum, as of the loss of grades.

    Args:
        teacher: The teacher's logits `(batch, grades - 1)`.
        student: The student's logits `(batch, grades - 1)`.
        temperature: T, above 0.

    Returns:
        `(batch,)`.
    """
    return ops.sum(_binary_divergence(teacher, student, temperature), axis=-1)


def number_distillation(teacher: Any, student: Any) -> Any:
    """Return the squared difference of each image's numbers, their mean.

    Args:
        teacher: The teacher's outputs `(batch, numbers)`, on the student's scale.
        student: The student's outputs `(batch, numbers)`.

    Returns:
        `(batch,)`.
    """
    return ops.mean(ops.square(ops.subtract(teacher, student)), axis=-1)


def _binary_divergence(teacher: Any, student: Any, temperature: float) -> Any:
    t, s = (ops.divide(outputs, temperature) for outputs in (teacher, student))
    # log p(yes) is -softplus(-x), and log p(no) is -softplus(x).
    yes = ops.sigmoid(t) * (ops.softplus(-s) - ops.softplus(-t))
    return temperature**2 * (yes + ops.sigmoid(-t) * (ops.softplus(s) - ops.softplus(t)))
