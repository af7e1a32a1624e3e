"""Options of XLA under which the suite compiles its thousands of small graphs in half the time."""

from importlib import metadata

# The versions whose XLA is known to have the second line: it ends a process at an unknown flag.
SERIES = {"jaxlib": "0.10.", "tensorflow": "2.21."}
QUICK_XLA = "--xla_backend_optimization_level=0"


def _has_more_flags() -> bool:
    for package, series in SERIES.items():
        try:
            if not metadata.version(package).startswith(series):
                return False
        except metadata.PackageNotFoundError:
            continue
    return True


if _has_more_flags():
    # The older emitters compile in four fifths of the time of those for fusions, and one part is
    # enough for a small graph.
    QUICK_XLA += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
