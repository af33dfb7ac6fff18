"""A study's Results, made up but consistent, with everything that a report has to show."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from servetune.records import (
    Axis,
    Budget,
    ClientFacts,
    Command,
    Completed,
    Conclusion,
    Config,
    Distribution,
    EngineSpec,
    Failed,
    Finding,
    HostFacts,
    Interval,
    Limits,
    Load,
    Measurement,
    Noise,
    Objective,
    Results,
    Run,
    RunRequest,
    StepResult,
    Study,
    Summary,
    Trial,
    Variant,
    Verdict,
    WorkloadChange,
    WorkloadSpec,
)

BASELINE = Config(engine="llamacpp", variant="F16", options={"threads": 1})
Q4_0 = Config(engine="llamacpp", variant="Q4_0", options={"threads": 1})
Q8_0 = Config(engine="llamacpp", variant="Q8_0", options={"threads": 1})
MOCK = Config(engine="mock", options={})
THREADS = Config(engine="llamacpp", variant="Q4_0", options={"threads": 2})
UBATCH = Config(engine="llamacpp", variant="Q4_0", options={"threads": 2, "ubatch": 256})
KV = Config(engine="llamacpp", variant="Q4_0", options={"cache_type_k": "q8_0", "threads": 2})
HOSTILE = Config(
    engine="llamacpp",
    variant="</script><script>alert(1)</script>",
    options={"note": "|`<img src=x onerror=alert(1)>`| \u202egnp.exe [x](javascript:alert(1)) " + "A" * 10_000},
)

SPEED = {"F16": 1.0, "Q8_0": 1.4, "Q4_0": 1.6, "": 0.8}
BASE_RATES = {"chat": 210.0, "short": 640.0, "long": 2870.0}

WORKLOADS = (
    WorkloadSpec(name="chat", kind="chat", num_prompts=12, params={"input_len": 48, "output_len": 16}),
    WorkloadSpec(
        name="short",
        kind="random",
        num_prompts=24,
        params={"input_len": 128, "output_len": 4},
        load=Load(request_rate=4.0, max_concurrency=8),
        seed=42,
    ),
    WorkloadSpec(name="long", kind="random", num_prompts=4, params={"input_len": 1024, "output_len": 16}),
)

STUDY = Study(
    name="smollm2-demo",
    model="SmolLM2-135M-Instruct",
    baseline=BASELINE,
    engines=(
        EngineSpec(
            name="llamacpp",
            options={"threads": 1},
            axes=(
                Axis(option="threads", values=(1, 2)),
                Axis(option="ubatch", values=(128, 256, 512)),
                Axis(option="flash_attn", values=(False, True)),
            ),
            variants=(Variant(name="F16"), Variant(name="Q8_0"), Variant(name="Q4_0"), Variant(name="Q4_1")),
            env={"HF_TOKEN": "hf_secret_value", "OMP_NUM_THREADS": "1"},
        ),
        EngineSpec(name="mock"),
    ),
    workloads=WORKLOADS,
    objective=Objective(metric="total_token_throughput", on="chat", min_gain=0.01),
    limits=Limits(bounds={"p99_ttft_ms": 30000.0, "success_rate": 0.99}, max_loss=0.05),
    budget=Budget(seconds=240.0, max_repeats=5),
    seed=7,
)

HOST = HostFacts(
    hostname="bench-01",
    os="Debian GNU/Linux 12",
    kernel="6.1.0",
    cpu="AMD EPYC 7763",
    cores=2,
    memory_gib=7.75,
    memory_available_gib=6.1,
    cpu_flags=("avx", "avx2", "fma"),
    python="3.11.7",
    servetune="0.1.0",
    packages={"uvloop": "0.23.0", "numpy": "2.4.6"},
    load_average=0.12,
)


def interval(estimate: float, low: float, high: float) -> Interval:
    """A gain with its 95 % interval."""
    return Interval(estimate=estimate, low=low, high=high, confidence=0.95)


def wobble(*parts: int) -> float:
    """A deterministic factor within 1 % of 1, different for different arguments."""
    return 1 + 0.01 * math.sin(sum((index + 1) * 12.9898 * part for index, part in enumerate(parts)))


def distribution(mean: float) -> Distribution:
    """Statistics around a mean, with a tail."""
    return Distribution(
        count=12,
        mean=mean,
        median=mean * 0.96,
        std=mean * 0.2,
        min=mean * 0.6,
        max=mean * 1.9,
        p90=mean * 1.4,
        p95=mean * 1.6,
        p99=mean * 1.85,
    )


def summary(config: Config, workload: str, noise: float, *, failed: int = 0) -> Summary:
    """Figures of one run that follow a small law of the config."""
    speed = SPEED.get(config.variant, 1.0) * (1.25 if config.options.get("threads") == 2 else 1.0) * noise
    total = BASE_RATES[workload] * speed
    duration_s = 3.2 / speed
    tokens = total * duration_s
    prefill_ms = 310.0 / speed * (1.28 if config.variant == "Q4_0" and workload == "long" else 1.0)
    return Summary(
        definitions="strict",
        completed=12 - failed,
        failed=failed,
        duration_s=duration_s,
        total_input_tokens=round(tokens * 0.75),
        total_output_tokens=round(tokens * 0.25),
        request_throughput=(12 - failed) / duration_s,
        output_throughput=total * 0.25,
        total_token_throughput=total,
        peak_output_throughput=total * 0.4,
        peak_concurrency=12,
        latency={
            "ttft": distribution(prefill_ms),
            "tpot": distribution(41.0 / speed),
            "itl": distribution(40.0 / speed),
            "e2el": distribution(prefill_ms + 15 * 41.0 / speed),
        },
        token_source="usage",
        errors={"reset": failed} if failed else {},
    )


def client() -> ClientFacts:
    """What the load client says of an ordinary run."""
    return ClientFacts(
        stamps="kernel",
        workers=1,
        epoch_ns=1_796_000_000_000_000_000,
        duration_ns=3_200_000_000,
        clock_step_ns=12_000,
        cpu_share=0.04,
        max_loop_lag_ms=0.8,
        late_sends=0,
        multi_event_reads=0.002,
        unresolved_ttft=0.0,
        peak_open=12,
    )


def run(config: Config, workload: str, *, repeat: int, number: int, findings: tuple[Finding, ...] = ()) -> Run:
    """One run of a config."""
    return Run(
        workload=workload,
        repeat=repeat,
        seed=1000 + repeat,
        load=Load(),
        summary=summary(config, workload, wobble(number, repeat), failed=1 if findings else 0),
        client=client(),
        findings=findings,
        started_at="2026-11-30T10:00:00Z",
        workload_digest=f"{repeat:016x}",
        records_file=f"runs/{number}-{workload}-{repeat}.bin",
    )


def trial(
    number: int,
    config: Config,
    *,
    step: str,
    block: int,
    role: str = "challenger",
    workloads: tuple[str, ...] = ("chat",),
    outcome: Completed | Failed | None = None,
    findings: tuple[Finding, ...] = (),
) -> Trial:
    """One launch; a failed one made no run."""
    done = outcome is None or isinstance(outcome, Completed)
    options = [part for name, value in config.options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    argv = ("llama-server", "--model", f"/models/SmolLM2 135M {config.variant}.gguf", "--port", "40123", *options)
    return Trial(
        number=number,
        measurement=Measurement(
            config=config,
            runs=tuple(RunRequest(workload=name, repeat=block) for name in workloads),
            step=step,
            block=block,
            role=role,  # type: ignore[arg-type]
        ),
        outcome=outcome or Completed(),
        runs=tuple(run(config, name, repeat=block, number=number, findings=findings) for name in workloads)
        if done
        else (),
        command=Command(argv=argv, env={"OMP_NUM_THREADS": "1", "API_KEY": "***"}),
        engine_version="b7040 (llama.cpp)",
        started_at=f"2026-11-30T10:{number:02d}:00Z",
        start_s=0.42 if done else None,
        wall_s=4.1,
        peak_rss_mib=412.0 if done else None,
        log_file=f"logs/{number}.log",
    )


OUT_OF_MEMORY = Failed(
    stage="launch",
    cause="out-of-memory",
    evidence="ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 68719476736\n"
    "<script>alert('log')</script> | `main: error: unable to load model`",
)


def _trials() -> Iterator[Trial]:
    partial = Finding(code="partial", severity="warning", evidence="1 of 12 requests failed.", advice="See the log.")
    yield trial(1, BASELINE, step="engine", block=0, role="incumbent")
    yield trial(2, Q4_0, step="engine", block=0)
    yield trial(3, Q8_0, step="engine", block=0, findings=(partial,))
    yield trial(4, MOCK, step="engine", block=0)
    yield trial(5, BASELINE, step="engine", block=1, role="incumbent")
    yield trial(6, Q4_0, step="engine", block=1)
    yield trial(7, Q4_0, step="threads", block=0, role="incumbent")
    yield trial(8, THREADS, step="threads", block=0)
    yield trial(9, THREADS, step="batching", block=0, role="incumbent")
    yield trial(10, UBATCH, step="batching", block=0)
    yield trial(11, THREADS, step="memory", block=0, role="incumbent")
    yield trial(12, KV, step="memory", block=0, outcome=OUT_OF_MEMORY)
    yield trial(13, KV, step="memory", block=1, outcome=OUT_OF_MEMORY)
    names = tuple(spec.name for spec in WORKLOADS)
    for block in range(5):
        yield trial(14 + 2 * block, BASELINE, step="validate", block=block, role="baseline", workloads=names)
        yield trial(15 + 2 * block, THREADS, step="validate", block=block, role="winner", workloads=names)


def verdict(
    config: Config,
    against: Config,
    kind: str,
    gain: Interval | None,
    *,
    adopted: bool = False,
    reason: str = "",
    repeats: int = 2,
) -> Verdict:
    """One decision of a step."""
    return Verdict(
        config=config,
        against=against,
        kind=kind,  # type: ignore[arg-type]
        gain=gain,
        repeats=repeats,
        adopted=adopted,
        reason=reason,
    )


STEPS = (
    StepResult(
        name="engine",
        title="Choose the engine and variant",
        incumbent=BASELINE,
        verdicts=(
            verdict(Q4_0, BASELINE, "better", interval(0.6, 0.57, 0.63), adopted=True, reason="highest gain"),
            verdict(Q8_0, BASELINE, "better", interval(0.4, 0.37, 0.43), reason="Q4_0 gains more"),
            verdict(MOCK, BASELINE, "worse", interval(-0.2, -0.23, -0.17), reason="it loses 20 %"),
        ),
        leader=Q4_0,
        finished=True,
        stop_reason="decided after 2 of 5 repeats",
    ),
    StepResult(
        name="threads",
        title="Threads",
        incumbent=Q4_0,
        verdicts=(verdict(THREADS, Q4_0, "better", interval(0.25, 0.21, 0.29), adopted=True, reason="clear"),),
        leader=THREADS,
        finished=True,
    ),
    StepResult(
        name="batching",
        title="Batching",
        incumbent=THREADS,
        verdicts=(verdict(UBATCH, THREADS, "no difference shown", interval(0.002, -0.012, 0.016), reason="noise"),),
        leader=THREADS,
        finished=True,
    ),
    StepResult(
        name="memory",
        title="Memory",
        incumbent=THREADS,
        verdicts=(verdict(KV, THREADS, "invalid", None, repeats=0, reason="it failed twice: out-of-memory"),),
        leader=THREADS,
        finished=True,
    ),
)

NOISE = Noise(between_launches=0.009, within_launch=0.011, one_launch=0.0142, degrees=11.0)
UNCHECKED = Finding(
    code="quality-not-checked",
    severity="warning",
    evidence="The winner's weights (Q4_0) differ from the baseline's (F16).",
    advice="Check its answers before you serve with it.",
)

CONCLUSION = Conclusion(
    baseline=BASELINE,
    recommended=THREADS,
    kind="better",
    gain=interval(0.98, 0.91, 1.05),
    changes=tuple(
        WorkloadChange(
            workload=spec.name,
            metric="total_token_throughput",
            gain=interval(0.98, 0.91, 1.05) if spec.name == "chat" else interval(1.0, 0.94, 1.06),
            repeats=5,
        )
        for spec in WORKLOADS
    ),
    noise=NOISE,
    findings=(UNCHECKED,),
)

RESULTS = Results(
    study=STUDY,
    host=HOST,
    trials=tuple(_trials()),
    steps=STEPS,
    conclusion=CONCLUSION,
    dropped=("trial 40 of an earlier study: its workload 'chat' had 20 requests",),
    elapsed_s=221.0,
)


def with_conclusion(results: Results = RESULTS, **changes: object) -> Results:
    """The sample with another conclusion."""
    return msgspec.structs.replace(results, conclusion=msgspec.structs.replace(results.conclusion, **changes))


def barred() -> Results:
    """The winner loses on `long`, so that the baseline is recommended."""
    reason = "loses 7.0% on long (max_loss 5.0%); given up: +98.0% on chat"
    return with_conclusion(
        recommended=BASELINE,
        kind="no difference shown",
        gain=None,
        changes=(),
        findings=(),
        barred=(verdict(THREADS, BASELINE, "invalid", interval(0.98, 0.91, 1.05), reason=reason, repeats=5),),
    )


def no_difference() -> Results:
    """Nothing was adopted."""
    return with_conclusion(recommended=BASELINE, kind="no difference shown", gain=None, changes=(), findings=())


def unfinished() -> Results:
    """Interrupted in the third step: no validation."""
    steps = (*STEPS[:2], msgspec.structs.replace(STEPS[2], finished=False, verdicts=()))
    cut = msgspec.structs.replace(RESULTS, trials=RESULTS.trials[:9], steps=steps)
    return with_conclusion(cut, gain=None, changes=(), finished=False, stop_reason="interrupted")


def all_failed() -> Results:
    """Every launch failed."""
    failed = tuple(
        trial(number, config, step="engine", block=0, outcome=OUT_OF_MEMORY)
        for number, config in enumerate((BASELINE, Q4_0, Q8_0), 1)
    )
    steps = (
        StepResult(
            name="engine",
            title="Choose the engine and variant",
            incumbent=BASELINE,
            verdicts=(verdict(Q4_0, BASELINE, "invalid", None, repeats=0, reason="failed"),),
            leader=BASELINE,
            finished=True,
        ),
    )
    cut = msgspec.structs.replace(RESULTS, trials=failed, steps=steps)
    return with_conclusion(
        cut, recommended=BASELINE, kind="invalid", gain=None, changes=(), findings=(), noise=None, limits_met=False
    )


def empty() -> Results:
    """Nothing has been measured."""
    cut = msgspec.structs.replace(RESULTS, trials=(), steps=(), host=None, dropped=())
    return with_conclusion(
        cut,
        recommended=BASELINE,
        kind="no difference shown",
        gain=None,
        changes=(),
        findings=(),
        noise=None,
        finished=False,
    )


def hostile() -> Results:
    """The sample with text that would be markup, links or commands if it were not kept as text."""
    evil = (
        "<script>alert('x')</script>|`--`| [a](javascript:alert(1)) ![i](http://127.0.0.1/i.png) \u202eabc http://a.b"
    )
    trials = (
        *RESULTS.trials,
        trial(24, HOSTILE, step="memory", block=2),
        trial(25, HOSTILE, step="memory", block=3, outcome=Failed(stage="load", cause=evil, evidence=evil * 3)),
    )
    study = msgspec.structs.replace(STUDY, name=evil, model=f"<b>{evil}</b>")
    steps = (*STEPS, msgspec.structs.replace(STEPS[3], name="memory", title=evil, leader=HOSTILE))
    host = msgspec.structs.replace(HOST, hostname=evil, gpus=(evil,))
    changed = msgspec.structs.replace(RESULTS, study=study, trials=trials, steps=steps, host=host, dropped=(evil,))
    finding = Finding(code=evil, severity="bars", evidence=evil, advice=evil)
    return with_conclusion(changed, recommended=HOSTILE, findings=(finding,), changes=(), gain=interval(0.1, 0.05, 0.2))


def everything() -> dict[str, Results]:
    """Every sample by name."""
    return {
        "complete": RESULTS,
        "barred": barred(),
        "no-difference": no_difference(),
        "unfinished": unfinished(),
        "all-failed": all_failed(),
        "empty": empty(),
        "hostile": hostile(),
    }


def failed(cause: str, evidence: str) -> Failed:
    """An outcome of a launch that served nothing."""
    return Failed(stage="ready", cause=cause, evidence=evidence)


def no_failures() -> Results:
    """The sample without its failed launches."""
    fine = tuple(trial for trial in RESULTS.trials if isinstance(trial.outcome, Completed))
    return msgspec.structs.replace(RESULTS, trials=fine)
