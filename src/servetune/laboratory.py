"""From a Study to everything its trials share: engines found, models and variants on disk, tokenizer, host facts.

All that can be missing is found here, before anything is measured, and told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from servetune import engines, space, tokenizer, weights, workloads
from servetune.engines.base import Engine
from servetune.errors import HostProblem, ServetuneError, UserError
from servetune.http1 import NoAnswer, get
from servetune.masking import mask_text
from servetune.records import Config, Event, Installed, Missing, ModelFacts, Notice, Study, Variant
from servetune.telemetry import host as telemetry_host
from servetune.trial import Laboratory


def prepare(study: Study, folder: Path, emit: Callable[[Event], None]) -> Laboratory:
    """Find engines, fetch or make model files, load the tokenizer and check the workloads' data.

    Raises:
        UserError: a model, tokenizer or data file is missing or broken.
        HostProblem: none of the study's engines is installed, or a download is impossible.
    """
    host = telemetry_host.facts()
    found = {spec.name: engines.get(spec.name) for spec in study.engines}
    installed = find_engines(study, found, emit)
    # An engine that is not installed is no part of what is searched.
    study = msgspec.structs.replace(study, engines=tuple(spec for spec in study.engines if spec.name in installed))
    models = {
        (config.engine, config.variant): _model_of(study, found[config.engine], _variant(study, config), emit)
        for config in space.starting_configs(study)
    }
    facts: dict[str, ModelFacts] = {}
    for (engine, _), model in models.items():
        if found[engine].model_form == "gguf":
            facts[model] = weights.facts(Path(model))
    return Laboratory(
        study=study,
        folder=folder,
        host=host,
        engines=found,
        installed=installed,
        models=models,
        model_facts=facts,
        tokenizer=_tokenizer(study, found, models, emit),
    )


def _variant(study: Study, config: Config) -> Variant:
    """The variant of `config`; one without a name is the study's model as it is."""
    spec = space.find_spec(study.engines, config.engine)
    return next((variant for variant in spec.variants if variant.name == config.variant), Variant(name=""))


def find_engines(study: Study, found: Mapping[str, Engine], emit: Callable[[Event], None]) -> dict[str, Installed]:
    """Look for each engine of the study; a missing one is told and left out.

    Raises:
        HostProblem: none is installed, or the baseline's is missing.
    """
    installed: dict[str, Installed] = {}
    missing: list[Missing] = []
    for spec in study.engines:
        if spec.url:
            installed[spec.name] = _running(spec.name, spec.url)
            continue
        answer = found[spec.name].find(spec)
        if isinstance(answer, Installed):
            installed[spec.name] = answer
        else:
            missing.append(answer)
    lines = [f"{answer.engine}: {answer.reason} ({answer.remedy})" for answer in missing]
    if study.baseline.engine not in installed:
        raise HostProblem("the engine of the baseline is not installed\n  " + "\n  ".join(lines))
    for line in lines:
        emit(Notice(text=f"left out: {line}"))
    return installed


def _running(engine: str, url: str) -> Installed:
    """A server that somebody else started, if anything answers there.

    Raises:
        HostProblem: nothing answers at `url`.
    """
    answer = get(f"{url}/v1/models")
    if isinstance(answer, NoAnswer):
        raise HostProblem(
            f"{mask_text(url)}: {answer.reason} (start the server, or correct the URL; give it without /v1)"
        )
    return Installed(engine=engine, version="", argv=(), how=f"answers at {mask_text(url)}")


def _model_of(study: Study, engine: Engine, variant: Variant, emit: Callable[[Event], None]) -> str:
    """Path or hub name of one variant's weights, made or fetched as needed."""
    if engine.model_form == "any-name":
        return variant.model or study.model
    base = weights.resolve(variant.model or study.model, emit)
    if variant.quantize:
        return str(weights.variant_file(Path(base), variant.quantize, emit))
    return base


def _tokenizer(
    study: Study,
    found: Mapping[str, Engine],
    models: Mapping[tuple[str, str], str],
    emit: Callable[[Event], None],
) -> tokenizer.Tokenizer | None:
    """The study's tokenizer: the one it names, else the model's own where a file is at hand."""
    if study.tokenizer:
        return tokenizer.load(study.tokenizer)
    needs = [spec.name for spec in study.workloads if workloads.KINDS[spec.kind].needs_tokenizer]
    for (engine, _), model in models.items():
        if found[engine].model_form == "any-name":
            continue
        try:
            return tokenizer.load(model)
        except ServetuneError as error:
            if needs:
                raise
            emit(Notice(text=f"no tokenizer: {error}; prompt lengths are approximate"))
    if needs:
        raise UserError(
            f"workload {needs[0]}",
            "needs a tokenizer",
            'name one with tokenizer = "FOLDER, FILE or hub name" in [study]',
        )
    return None
