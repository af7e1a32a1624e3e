"""The version and the name of the distribution, without importing Keras."""

__version__ = "0.1.0"

# What `pip` calls this package. Not keras_vit: that name belongs to another project there.
DISTRIBUTION = "keras3-vit"


def install_command(*extras: str) -> str:
    """Return what a user types to get the packages of some extras.

    >>> install_command("tensorflow")
    "pip install 'keras3-vit[tensorflow]'"
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
