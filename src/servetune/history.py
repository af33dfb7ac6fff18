"""Which earlier measurements a study may use again, and why others no longer fit. Pure.

A trial fits when everything that decides how its server behaves is the same: engine table, engine version, model,
variant and host. A run fits when workload, load, definitions and prompt seed are the same. Axes, limits, objective and
budget may change freely: what was measured stays true.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from servetune.records import Config, HostFacts, Record, Study, Trial
from servetune.store import StoredTrial


class History(Record, frozen=True, kw_only=True):
    """The trials that fit a study, and what was left out."""

    trials: tuple[Trial, ...]
    dropped: tuple[str, ...]


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def trial_fits(study: Study, config: Config, engine_version: str, host: HostFacts | None) -> str | None:
    """Digest of what decides how a server of `config` behaves in `study`; None when the study has no such config."""
    spec = next((spec for spec in study.engines if spec.name == config.engine), None)
    if spec is None:
        return None
    variant = next((variant for variant in spec.variants if variant.name == config.variant), None)
    if variant is None and config.variant:
        return None
    how = (spec.command, spec.python, spec.url, sorted(spec.env.items()))
    machine = (host.cpu, host.cores, host.gpus) if host else None
    weights = (study.model, variant.model, variant.quantize) if variant else (study.model,)
    return _digest(spec.name, how, weights, engine_version, machine)


def run_fits(study: Study, workload: str) -> str | None:
    """Digest of what decides the figures of a run of `workload` apart from the server; None: no such workload."""
    spec = next((spec for spec in study.workloads if spec.name == workload), None)
    if spec is None:
        return None
    prompt_seed = spec.seed if spec.seed is not None else study.seed
    return _digest(spec, study.definitions, study.tokenizer, prompt_seed)


def select(study: Study, stored: Sequence[StoredTrial], versions: dict[str, str], host: HostFacts | None) -> History:
    """The trials of a store that fit `study`; `versions` are the engines' versions as found now."""
    kept: list[Trial] = []
    dropped: Counter[str] = Counter()
    for entry in stored:
        config = entry.trial.config
        version = versions.get(config.engine, entry.trial.engine_version)
        if trial_fits(study, config, version, host) != entry.fits:
            dropped[_why_not(study, entry, version)] += 1
            continue
        runs = []
        for run, fits in zip(entry.trial.runs, entry.run_fits, strict=True):
            if run_fits(study, run.workload) == fits:
                runs.append(run)
            else:
                dropped[f"runs of workload {run.workload}, which was changed or removed"] += 1
        if runs or not entry.trial.runs:
            kept.append(msgspec.structs.replace(entry.trial, runs=tuple(runs)))
    return History(trials=tuple(kept), dropped=tuple(f"{count} {reason}" for reason, count in dropped.items()))


def _why_not(study: Study, entry: StoredTrial, version: str) -> str:
    config = entry.trial.config
    if config.engine not in {spec.name for spec in study.engines}:
        return f"trials of engine {config.engine}, which is no longer in the study"
    if version != entry.trial.engine_version:
        return f"trials of {config.engine} {entry.trial.engine_version}: the version found now is {version}"
    return f"trials of {config.engine} {config.variant}: its engine table, model or host changed".replace(" :", ":")
