"""`python -m benchmarks`: the benchmark of a round; the others are named beside it."""

from __future__ import annotations

from rich.console import Console

from benchmarks.rounds import main

OTHERS = ("benchmarks.lstm", "benchmarks.data_cache FOLDER")

if __name__ == "__main__":
    main()
    Console().print("Others: " + ", ".join(f"python -m {name}" for name in OTHERS))
