"""Sections about how the figures came to be: method, noise, load, environment.

Pure; it states the rules of this program and the facts that the Results carry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from servetune.records import ClientFacts, HostFacts, Load, Results, WorkloadSpec
from servetune.report import evidence, formatting
from servetune.report.document import Cell, Column, Facts, Heading, Paragraph, Part, Section, Table
from servetune.report.phrases import Phrases
from servetune.report.views.verdict import limits_line

DEFINED = ("total_token_throughput", "output_throughput", "request_throughput", "ttft", "tpot", "itl", "e2el")
"""What the page defines, in this order."""


def method(results: Results, say: Phrases) -> Section:
    """Return how the study decides, what its figures mean, and how its load was sent."""
    parts: list[Part] = [
        Facts(items=_rules(results, say)),
        Heading(text=say("method.noise")),
        *_noise(results, say),
        Heading(text=say("method.workloads")),
        _workloads(results.study.workloads, say),
        Heading(text=say("method.definitions", name=formatting.clip(results.study.definitions, 40))),
        Facts(items=tuple((say(f"defined.{name}"), say(f"definition.{name}")) for name in DEFINED)),
        Paragraph(text=say("definition.profiles"), tone="muted"),
    ]
    return Section(name="method", title=say("method.title"), parts=tuple(parts))


def _rules(results: Results, say: Phrases) -> tuple[tuple[str, str], ...]:
    study = results.study
    objective, budget = study.objective, study.budget
    maximize = objective.goal == "maximize"
    question = say(
        "rule.question.text",
        goal=say("goal.maximize" if maximize else "goal.minimize"),
        metric=say.metric(objective.metric),
        workload=formatting.clip(evidence.objective_workload(results), 60),
    )
    error_rate = formatting.percent(1 - objective.confidence)
    spent = say(
        "rule.budget.text",
        budget=formatting.duration(budget.seconds),
        spent=formatting.duration(results.elapsed_s),
        repeats=formatting.count(budget.max_repeats),
        runs=formatting.count(budget.runs_per_launch),
    )
    texts = {
        "question": question,
        "decision": say("rule.decision.text", min_gain=formatting.percent(objective.min_gain)),
        "error": say("rule.error.text", rate=error_rate, confidence=formatting.percent(objective.confidence)),
        "published": say("rule.published.text"),
        "limits": limits_line(results, say),
        "figures": say("rule.figures.text"),
        "gains": say("rule.gains.text"),
        "prompts": say("rule.prompts.text", seed=study.seed),
        "budget": spent,
        "search": formatting.clip(study.search, 40),
        "quality": say(f"quality.{study.quality}"),
    }
    return tuple((say(f"rule.{name}"), text) for name, text in texts.items())


def _noise(results: Results, say: Phrases) -> tuple[Part, ...]:
    noise = results.conclusion.noise
    if noise is None:
        return (Paragraph(text=say("noise.none")),)
    items = (
        (say("noise.between"), formatting.percent(noise.between_launches)),
        (say("noise.within"), formatting.percent(noise.within_launch)),
        (say("noise.one"), formatting.percent(noise.one_launch)),
        (say("noise.degrees"), formatting.setting(noise.degrees)),
    )
    return Paragraph(text=say("noise.intro"), tone="muted"), Facts(items=items)


def _workloads(workloads: Iterable[WorkloadSpec], say: Phrases) -> Table:
    titles = ("workload", "kind", "prompts", "parameters", "load", "warm-up", "seed")
    columns = tuple(Column(title=say(f"column.{name}"), number=name in {"prompts", "warm-up"}) for name in titles)
    rows = tuple(
        (
            Cell(text=formatting.clip(spec.name, 60)),
            Cell(text=formatting.clip(spec.kind, 40)),
            Cell(text=formatting.count(spec.num_prompts)),
            Cell(text=formatting.clip(", ".join(f"{name}={spec.params[name]}" for name in sorted(spec.params)), 160)),
            Cell(text=load_text(spec.load, say)),
            Cell(text=formatting.count(spec.load.warmup_requests)),
            Cell(text=say("seed.derived") if spec.seed is None else str(spec.seed)),
        )
        for spec in workloads
    )
    return Table(columns=columns, rows=rows)


def load_text(load: Load, say: Phrases) -> str:
    """Return how requests are sent, in words."""
    if load.request_rate is None:
        sent = say("load.at-once")
    else:
        rate, shape = formatting.setting(load.request_rate), formatting.setting(load.burstiness)
        sent = say("load.rate", rate=rate, burstiness=shape)
    if load.max_concurrency is None:
        return sent
    return sent + say("load.concurrency", n=formatting.count(load.max_concurrency))


def environment(results: Results, say: Phrases) -> Section:
    """Return the machine, the engines' versions, and what the load client says about itself."""
    host = results.host
    parts: list[Part] = [Facts(items=_host(host, say)) if host else Paragraph(text=say("host.unknown"), tone="warn")]
    versions = Counter((trial.config.engine, trial.engine_version) for trial in results.trials)
    if versions:
        columns = (
            Column(title=say("column.engine")),
            Column(title=say("column.version")),
            Column(title=say("column.launches"), number=True),
        )
        rows = tuple(
            (
                Cell(text=formatting.clip(engine, 60)),
                Cell(text=formatting.clip(version, 120) or formatting.ABSENT),
                Cell(text=formatting.count(number)),
            )
            for (engine, version), number in sorted(versions.items())
        )
        parts.append(Table(columns=columns, rows=rows))
    clients = [run.client for trial in results.trials for run in trial.runs]
    if clients:
        parts += [Heading(text=say("client.title")), Facts(items=_client(clients, say))]
    return Section(name="environment", title=say("environment.title"), parts=tuple(parts))


def _host(host: HostFacts, say: Phrases) -> tuple[tuple[str, str], ...]:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(host.packages.items()))
    items = {
        "name": formatting.clip(host.hostname, 80),
        "os": formatting.clip(f"{host.os}, {host.kernel}", 160),
        "cpu": say("host.cpu.text", cpu=formatting.clip(host.cpu, 100), cores=say.counted("cores", host.cores)),
        "flags": formatting.clip(" ".join(host.cpu_flags), 200),
        "memory": say("host.memory.text", memory=formatting.setting(host.memory_gib)),
        "gpus": formatting.clip(", ".join(host.gpus), 200) or say("host.no-gpu"),
        "load": formatting.setting(host.load_average),
        "python": formatting.clip(host.python, 80),
        "servetune": formatting.clip(host.servetune, 80),
        "packages": formatting.clip(packages, 400),
    }
    return tuple((say(f"host.{name}"), text) for name, text in items.items() if text and text != formatting.ABSENT)


def _client(clients: list[ClientFacts], say: Phrases) -> tuple[tuple[str, str], ...]:
    """The worst of each figure over all runs: that is what bounds the error of the measurement."""
    stamps = Counter(client.stamps for client in clients)
    items = {
        "stamps": ", ".join(f"{say.word('stamps', kind)} ({number})" for kind, number in sorted(stamps.items())),
        "workers": formatting.count(max(client.workers for client in clients)),
        "cpu": formatting.percent(max(client.cpu_share for client in clients)),
        "lag": formatting.amount(max(client.max_loop_lag_ms for client in clients), "ms"),
        "late": formatting.count(sum(client.late_sends for client in clients)),
        "merged": formatting.percent(max(client.multi_event_reads for client in clients)),
        "clock": formatting.amount(max(abs(client.clock_step_ns) for client in clients) / 1e6, "ms"),
    }
    return tuple((say(f"client.{name}"), text) for name, text in items.items())
