"""`python -m benchmarks NAME ...` runs `benchmarks/NAME.py`; without a name it lists them."""

import importlib
import pkgutil
import sys

import benchmarks


def main() -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_")
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        for name in names:
            title = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").splitlines()[0]
            print(f"{name:<16}{title}")
        return 0 if len(sys.argv) < 2 else 2
    return importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:]) or 0


if __name__ == "__main__":
    sys.exit(main())
