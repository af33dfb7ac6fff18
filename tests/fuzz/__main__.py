"""`python -m tests.fuzz`: millions of bad answers through the parser. Any split of the bytes gives the same events.

An input is a number: `--only N` runs that one again. Where atheris is installed, inputs that it finds follow.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.fuzz.answers import answer
from tests.fuzz.driver import Fuzzing

_BEGINNINGS = 500


def main() -> int:
    """Run as many inputs as asked for; 1: one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the way from bytes to events.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of the one input to run")
    parser.add_argument("--guided", type=int, default=200_000, help="inputs of atheris, where it is installed")
    chosen = parser.parse_args()
    numbers = range(chosen.inputs) if chosen.only is None else range(chosen.only, chosen.only + 1)
    failures = Fuzzing(chosen.seed).run(numbers, lambda text: print(text, flush=True))
    if chosen.only is not None or not chosen.guided:
        return 1 if failures else 0
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: no guided inputs")
        return 1 if failures else 0
    return 1 if _guided(chosen.guided, chosen.seed) or failures else 0


def _guided(inputs: int, seed: int) -> int:
    """Run atheris in a process of its own, which it ends itself, from inputs of the driver's kind."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_BEGINNINGS):
            random = Random((seed << 40) + number)
            start = bytes([random.randrange(256), random.randrange(256)])
            Path(folder, str(number)).write_bytes(start + answer(random))
        command = [sys.executable, "-m", "tests.fuzz.guided", f"-runs={inputs}", f"-seed={seed}"]
        ended = subprocess.run(
            [*command, f"-artifact_prefix={folder}/", folder],
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            check=False,
        )
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    told = [line for line in lines if line.startswith(("Done", "stat::number", "stat::new"))]
    print("\n".join(["atheris:", *(told if ended.returncode == 0 else lines[-60:])]))
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
