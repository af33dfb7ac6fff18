"""Workload `sharegpt`: first turns of recorded conversations, chosen by the rules of `vllm bench serve`.

Reads a file of ShareGPT's JSON form (a list of objects with `conversations`, each a list of objects with `value`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from servetune import hub
from servetune.errors import UserError
from servetune.records import OptionSpec, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from servetune.workloads.base import ALGORITHM, Parameters, generator, parameter, parameter_mistakes

_FEWEST_TOKENS = 4
_LONGEST_PROMPT = 1024
_LONGEST_TOTAL = 2048

_HUB_DATA_SET = "anon8231489123/ShareGPT_Vicuna_unfiltered"
_HUB_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"


class _Turn(msgspec.Struct):
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = []


class ShareGpt:
    """Real first turns; the output length is that of the recorded answer."""

    kind = "sharegpt"
    needs_tokenizer = True
    params: Mapping[str, OptionSpec] = {
        "path": parameter("path", "str", "", "JSON file; not set: the data set is fetched from the hub"),
        "output_len": parameter(
            "output_len", "int", 0, "tokens to generate; 0: as many as the recorded answer has", range=(0, 10_000_000)
        ),
        "algorithm": ALGORITHM,
    }

    def check(self, spec: WorkloadSpec) -> list[UserError]:
        """Return every mistake in the parameters of `spec`; a file that is named must exist."""
        mistakes = parameter_mistakes(spec, self.params)
        path = spec.params.get("path")
        if isinstance(path, str) and path and not Path(path).expanduser().is_file():
            fix = "fetch a file of ShareGPT's JSON form, or remove path to have it fetched from the hub"
            mistakes.append(UserError(f"workload.{spec.name}.path", f"there is no file {path}", fix))
        return mistakes

    def requests(self, spec: WorkloadSpec, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
        """Return the requests of one run; raises UserError without a tokenizer or for a file without usable turns."""
        if tokenizer is None:
            fix = "set tokenizer to a model folder, a tokenizer.json or a GGUF file"
            raise UserError(f"workload.{spec.name}", 'kind "sharegpt" needs a tokenizer', fix)
        parameters = Parameters(spec, self.params)
        named = parameters.text("path")
        path = Path(named).expanduser() if named else _fetched()
        pairs = _first_turns(path)
        generator(seed).shuffle(pairs)
        accepted = _accepted(pairs, spec.num_prompts, parameters.whole("output_len"), tokenizer)
        if not accepted:
            raise UserError(str(path), f"none of its {len(pairs)} conversations passes the length rules", _RULES)
        return _numbered(accepted + _repeats(accepted, spec.num_prompts, seed, parameters.text("algorithm")))

    def typical_lengths(self, spec: WorkloadSpec) -> tuple[int, int]:
        """Return the means of published runs."""
        return 215, Parameters(spec, self.params).whole("output_len") or 198


_RULES = (
    f"a prompt has {_FEWEST_TOKENS} to {_LONGEST_PROMPT} tokens, an answer at least {_FEWEST_TOKENS},"
    f" both together at most {_LONGEST_TOTAL}"
)


def _fetched() -> Path:
    remedy = "set path to a file of ShareGPT's JSON form, or use kind chat, which needs no file"
    return hub.fetch_file(_HUB_DATA_SET, _HUB_FILE, is_data_set=True, remedy=remedy)


def _first_turns(path: Path) -> list[tuple[str, str]]:
    """Return the first two turns of every conversation that has two; raises UserError for anything else."""
    try:
        conversations = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except OSError as error:
        raise UserError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"is not of ShareGPT's JSON form: {error}", _FORM) from error
    pairs = [
        (one.conversations[0].value, one.conversations[1].value) for one in conversations if len(one.conversations) > 1
    ]
    if not pairs:
        problem = f"has {len(conversations)} entries, but no conversation of two turns"
        raise UserError(str(path), problem, _FORM)
    return pairs


_FORM = 'expected: [{"conversations": [{"value": "question"}, {"value": "answer"}]}, ...]'

_Chosen = tuple[str, int, int]
"""Prompt, its tokens, tokens to generate."""


def _accepted(pairs: list[tuple[str, str]], count: int, output_len: int, tokenizer: Tokenizer) -> list[_Chosen]:
    """Walk through `pairs` until `count` of them pass the length rules."""
    chosen: list[_Chosen] = []
    for prompt, answer in pairs:
        if len(chosen) == count:
            break
        prompt_tokens = len(tokenizer.encode(prompt, add_special=True))
        output_tokens = output_len or len(tokenizer.encode(answer, add_special=True))
        long_enough = prompt_tokens >= _FEWEST_TOKENS and (output_len > 0 or output_tokens >= _FEWEST_TOKENS)
        short_enough = prompt_tokens <= _LONGEST_PROMPT and prompt_tokens + output_tokens <= _LONGEST_TOTAL
        if long_enough and short_enough:
            chosen.append((prompt, prompt_tokens, output_tokens))
    return chosen


def _repeats(accepted: list[_Chosen], count: int, seed: int, algorithm: str) -> list[_Chosen]:
    """Draw what is missing to `count` with replacement; the two versions draw differently."""
    missing = count - len(accepted)
    if missing <= 0:
        return []
    draw = generator(seed)
    if algorithm == "vllm-0.11":
        return draw.choices(accepted, k=missing)
    return [draw.choice(accepted) for _ in range(missing)]


def _numbered(chosen: list[_Chosen]) -> list[Request]:
    return [
        Request(index=index, prompt=prompt, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        for index, (prompt, prompt_tokens, output_tokens) in enumerate(chosen)
    ]
