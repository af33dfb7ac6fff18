"""Workload `chat`: synthetic conversations, built in, with lengths like those of people's chats.

Lengths follow two lognormal distributions, cut at both ends, whose means are the token totals per request that
published ShareGPT runs state (215 in, 198 out). docs/workloads.md gives the parameters and how they were fitted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import NormalDist

import msgspec

from servetune.errors import UserError
from servetune.records import OptionSpec, Record, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from servetune.workloads.base import Parameters, generator, parameter, parameter_mistakes
from servetune.workloads.prose import sentences


class Lengths(Record, frozen=True, kw_only=True):
    """A lognormal distribution of lengths in tokens, cut at both ends."""

    mu: float
    """Mean of the logarithm before the cut."""
    sigma: float
    shortest: int
    longest: int

    def mean(self) -> float:
        """Return the mean after the cut (the usual formula of a truncated lognormal)."""
        unit, low, high = NormalDist(), *self._ends()
        inside = unit.cdf(high) - unit.cdf(low)
        shifted = unit.cdf(high - self.sigma) - unit.cdf(low - self.sigma)
        return math.exp(self.mu + self.sigma**2 / 2) * shifted / inside

    def quantile(self, share: float) -> float:
        """Return the length that `share` (0 to 1) of all draws do not exceed."""
        unit, low, high = NormalDist(), *self._ends()
        level = unit.cdf(low) + share * (unit.cdf(high) - unit.cdf(low))
        length = math.exp(self.mu + self.sigma * unit.inv_cdf(level))
        return min(max(length, self.shortest), self.longest)

    def narrowed(self, spread: float) -> Lengths:
        """Return the distribution with its sigma times `spread` and the same mean (by bisection over mu)."""
        if spread == 1:
            return self
        target, low, high = self.mean(), 0.0, math.log(self.longest)
        for _ in range(60):
            middle = msgspec.structs.replace(self, mu=(low + high) / 2, sigma=self.sigma * spread)
            low, high = (middle.mu, high) if middle.mean() < target else (low, middle.mu)
        return middle

    def _ends(self) -> tuple[float, float]:
        low, high = math.log(self.shortest), math.log(self.longest)
        return (low - self.mu) / self.sigma, (high - self.mu) / self.sigma


INPUT = Lengths(mu=5.0135, sigma=1.4, shortest=4, longest=1024)
"""Mean 215."""
OUTPUT = Lengths(mu=4.8220, sigma=1.0, shortest=4, longest=2044)
"""Mean 198."""
INPUT_MEAN, OUTPUT_MEAN = 215, 198

_WORDS_PER_TOKEN = 0.75
_MOST_TRIES = 6


class Chat:
    """Synthetic requests of one user message; the output length is forced."""

    kind = "chat"
    needs_tokenizer = False
    params: Mapping[str, OptionSpec] = {
        "input_mean": parameter(
            "input_mean", "int", INPUT_MEAN, "mean tokens of a prompt; all lengths scale with it", range=(1, 1_000_000)
        ),
        "output_mean": parameter(
            "output_mean",
            "int",
            OUTPUT_MEAN,
            "mean tokens to generate; all lengths scale with it",
            range=(1, 1_000_000),
        ),
        "spread": parameter(
            "spread", "float", 1.0, "1: lengths as uneven as in people's chats; 0.05: all nearly equal", range=(0.05, 1)
        ),
        "max_total": parameter(
            "max_total",
            "int",
            2048,
            "most tokens of prompt and output together; longer pairs are shrunk",
            range=(2, 10_000_000),
        ),
    }

    def check(self, spec: WorkloadSpec) -> list[UserError]:
        """Return every mistake in the parameters of `spec`."""
        mistakes = parameter_mistakes(spec, self.params)
        if not mistakes:
            parameters = Parameters(spec, self.params)
            means = parameters.whole("input_mean") + parameters.whole("output_mean")
            if means > parameters.whole("max_total"):
                problem = f"input_mean and output_mean together ({means}) exceed it"
                mistakes.append(UserError(f"workload.{spec.name}.max_total", problem, f"set max_total to {4 * means}"))
        return mistakes

    def requests(self, spec: WorkloadSpec, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
        """Return the requests of one run: exact lengths with a tokenizer, about 0.75 words a token without."""
        draw = generator(seed)
        pairs = _length_pairs(spec, Parameters(spec, self.params), draw)
        return [_request(index, pair, _Writer(draw, tokenizer)) for index, pair in enumerate(pairs)]

    def typical_lengths(self, spec: WorkloadSpec) -> tuple[int, int]:
        """Return the means."""
        parameters = Parameters(spec, self.params)
        return parameters.whole("input_mean"), parameters.whole("output_mean")


def practice(lengths: tuple[int, int], count: int, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
    """Return `count` warm-up requests of these (input, output) lengths; no workload's prompts begin as theirs do."""
    writer = _Writer(generator(seed), tokenizer, before="Practice makes perfect.")
    return [_request(index, lengths, writer) for index in range(count)]


def _length_pairs(spec: WorkloadSpec, parameters: Parameters, draw: random.Random) -> list[tuple[int, int]]:
    """Return (input, output) lengths; each side is drawn once from every one of n equal slices, then shuffled.

    So two runs of one spec ask for nearly the same totals, though every request differs.
    """
    count, spread = spec.num_prompts, parameters.number("spread")
    inputs = _stratified(INPUT.narrowed(spread), parameters.whole("input_mean"), count, draw)
    outputs = _stratified(OUTPUT.narrowed(spread), parameters.whole("output_mean"), count, draw)
    return [_shrunk(pair, parameters.whole("max_total")) for pair in zip(inputs, outputs, strict=True)]


def _stratified(lengths: Lengths, mean: int, count: int, draw: random.Random) -> list[int]:
    """Return `count` lengths around `mean`, none shorter than 4 tokens (or than `mean`, if that is less)."""
    scale, shortest = mean / lengths.mean(), min(mean, lengths.shortest)
    drawn = [scale * lengths.quantile((index + draw.random()) / count) for index in range(count)]
    draw.shuffle(drawn)
    return [max(shortest, round(length)) for length in drawn]


def _shrunk(pair: tuple[int, int], most: int) -> tuple[int, int]:
    """Shrink both lengths by the same factor if their sum exceeds `most`."""
    total = sum(pair)
    if total <= most:
        return pair
    prompt = min(max(1, pair[0] * most // total), most - 1)
    return prompt, max(1, min(pair[1] * most // total, most - prompt))


def _request(index: int, pair: tuple[int, int], writer: _Writer) -> Request:
    prompt, prompt_tokens = writer.prompt(pair[0])
    return Request(index=index, prompt=prompt, prompt_tokens=prompt_tokens, output_tokens=pair[1])


class _Writer:
    """Writes prompts of a given length."""

    def __init__(self, draw: random.Random, tokenizer: Tokenizer | None, *, before: str = "") -> None:
        self.draw = draw
        self.tokenizer = tokenizer
        self.before = before

    def prompt(self, tokens: int) -> tuple[str, int | None]:
        """Return a prompt and the tokens that it really has; None without a tokenizer."""
        if self.tokenizer is None:
            return self._of_words(max(1, round(tokens * _WORDS_PER_TOKEN))), None
        return self._of_tokens(tokens, self.tokenizer)

    def _of_words(self, count: int) -> str:
        words: list[str] = []
        for sentence in sentences(self.draw, before=self.before):
            words += sentence.split()
            if len(words) >= count:
                break
        return " ".join(words[:count])

    def _of_tokens(self, count: int, tokenizer: Tokenizer) -> tuple[str, int]:
        """Cut a longer text to `count` tokens; where the cut joins tokens anew, try the next few places."""
        ids = tokenizer.encode(self._of_words(count + 8))
        while len(ids) < count + _MOST_TRIES:
            ids = tokenizer.encode(tokenizer.decode(ids) + " " + self._of_words(count))
        best = "", 0
        for extra in range(_MOST_TRIES):
            prompt = tokenizer.decode(ids[: count + extra]).strip()
            length = len(tokenizer.encode(prompt))
            if length == count:
                return prompt, length
            if abs(length - count) < abs(best[1] - count):
                best = prompt, length
        return best
