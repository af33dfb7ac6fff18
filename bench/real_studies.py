"""Whole studies with real processes on the mock's law: `python bench/real_studies.py [--studies N]`.

The simulation of bench/decisions.py proves the error rate with thousands of studies in process. Here a few go through
everything: the command, keeper, server, load client, store and report. Half of them have no true gain anywhere, the
other half a true gain of 5 % in one option. Prints for each study what was adopted and the published interval; exit
code 1 if a study without a gain adopts anything, or a study does not end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servetune import studyfile
from servetune.records import (
    Axis,
    Budget,
    Config,
    EngineSpec,
    Objective,
    OptionValue,
    Results,
    Study,
    Variant,
    WorkloadSpec,
)
from servetune.study import load_results

GAIN = 1.05
LAW = "structural = false\n"
GAINS = f"[gains.async_scheduling]\ntrue = {GAIN}\n"


def study(law: Path, number: int) -> Study:
    """A study of three variants and three options, whose launches and runs are as noisy as a saturated server's."""
    fixed: dict[str, OptionValue] = {"law": str(law), "seed": number, "speed": 2.0}
    return Study(
        name=f"real-{number}",
        model="mock-model",
        baseline=Config(engine="mock", variant="bf16", options=fixed),
        engines=(
            EngineSpec(
                name="mock",
                options=fixed,
                variants=tuple(Variant(name=name) for name in ("bf16", "fp8", "awq")),
                axes=(
                    Axis(option="async_scheduling", values=(False, True)),
                    Axis(option="attention_backend", values=("reference", "flash")),
                    Axis(option="block_size", values=(16, 8, 32)),
                ),
            ),
        ),
        workloads=(
            WorkloadSpec(
                name="chat", kind="chat", num_prompts=24, params={"input_mean": 32, "output_mean": 16, "spread": 0.05}
            ),
        ),
        objective=Objective(on="chat"),
        budget=Budget(seconds=600, max_repeats=5),
        seed=number,
    )


def run(folder: Path, number: int, gains: str) -> Results:
    """Make one study with the command a user types; raises CalledProcessError if it does not end well."""
    law = folder / f"law-{number}.toml"
    law.write_text(LAW + gains)
    file = folder / f"study-{number}.toml"
    file.write_text(studyfile.dump(study(law, number)))
    out = folder / f"out-{number}"
    command = [sys.executable, "-m", "servetune.cli.main", "tune", str(file), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return load_results(out)


def main() -> int:
    """Run the studies one after the other and print a line for each."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--studies", type=int, default=3, help="of each kind (default 3)")
    count = arguments.parse_args().studies
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(2 * count):
            has_gain = number % 2 == 1
            begin = time.monotonic()
            results = run(Path(scratch), number, GAINS if has_gain else "")
            adopted = [verdict for step in results.steps for verdict in step.verdicts if verdict.adopted]
            right = all(verdict.config.options.get("async_scheduling") and has_gain for verdict in adopted)
            failed = failed or not right
            gain = results.conclusion.gain
            shown = f"{gain.estimate:+.1%} [{gain.low:+.1%}, {gain.high:+.1%}]" if gain else "none published"
            noise = results.conclusion.noise
            spread = f"{noise.one_launch:.2%}" if noise and noise.one_launch else "?"
            print(
                f"study {number}: true gain {GAIN - 1 if has_gain else 0:.0%}, adopted {len(adopted)}"
                f" ({'right' if right else 'WRONG'}), {shown}, spread of a launch {spread},"
                f" {len(results.trials)} launches, {time.monotonic() - begin:.0f} s",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
