"""Endless synthetic English that reads like requests to an assistant, from small word lists and a seed.

Nothing in it is fetched or quoted. The first sentence names a subject and a number of its own, so that two prompts
seldom share a beginning that an engine's prefix cache could use.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_ROLES = [
    "teacher",
    "nurse",
    "baker",
    "engineer",
    "farmer",
    "lawyer",
    "student",
    "pilot",
    "gardener",
    "librarian",
    "carpenter",
    "translator",
]
_THINGS = [
    "budget",
    "schedule",
    "recipe",
    "contract",
    "report",
    "garden",
    "engine",
    "bridge",
    "database",
    "novel",
    "lesson",
    "survey",
    "invoice",
    "map",
    "playlist",
    "prototype",
    "letter",
    "website",
    "warehouse",
    "harbour",
    "telescope",
    "battery",
    "orchestra",
    "workshop",
    "timetable",
    "policy",
]
_PLACES = [
    "Lisbon",
    "Nairobi",
    "Osaka",
    "Toronto",
    "Hamburg",
    "Lima",
    "Oslo",
    "Mumbai",
    "Quito",
    "Dublin",
    "Hanoi",
    "Tbilisi",
    "Perth",
    "Boston",
    "Krakow",
    "Accra",
]
_QUALITIES = [
    "cheap",
    "quiet",
    "reliable",
    "old",
    "small",
    "modern",
    "seasonal",
    "shared",
    "fragile",
    "complete",
    "careful",
    "unusual",
    "bright",
    "local",
    "slow",
    "simple",
]
_ACTS = [
    "plan",
    "repair",
    "explain",
    "compare",
    "shorten",
    "translate",
    "test",
    "describe",
    "improve",
    "organise",
    "price",
    "review",
    "teach",
    "draw",
]
_PARTS = [
    "first step",
    "main risk",
    "total cost",
    "hidden assumption",
    "best example",
    "weakest part",
    "next decision",
    "usual mistake",
]
_TONES = [
    "plainly",
    "in two sentences",
    "with an example",
    "as a list",
    "for a beginner",
    "without jargon",
    "in a friendly tone",
]
_REASONS = [
    "the {quality} one failed last {season}",
    "my neighbour is a {role}",
    "we have only {number} days left",
    "the {thing} costs more than {number} coins",
    "nobody in {place} has tried it",
    "the {thing} must last {number} years",
]
_SEASONS = ["spring", "summer", "autumn", "winter", "week", "month"]

_OPENINGS = (
    "I am a {role} in {place} and I need to {act} a {quality} {thing}, number {number}.",
    "How would you {act} {number} {quality} {thing}s for a {role} from {place}?",
    "Please {act} the {thing} of {place} {tone}; it is case {number}.",
    "My {quality} {thing} from {place} has {number} faults, and a {role} asked me to {act} it.",
    "Write to a {role} in {place} about {thing} {number} and {act} it {tone}.",
    "Case {number}: a {role} wants to {act} the {quality} {thing} before leaving {place}.",
)
_MIDDLES = (
    "The {part} is that {reason}.",
    "It should stay {quality}, because {reason}.",
    "A {role} told me to {act} the {thing} before the {part}.",
    "Last {season} we tried to {act} a {quality} {thing} in {place}, and {reason}.",
    "Tell me the {part} and the {part_too}, {tone}.",
    "If the {thing} is too {quality}, say what a {role} would do.",
    "There are {number} people in {place} who can {act} a {thing}.",
    "Does the {part} change when the {thing} is {quality}?",
    "Keep in mind that {reason}, and that the {thing} is {quality}.",
    "Answer {tone}, and name the {part}.",
)


def sentences(draw: random.Random, *, before: str = "") -> Iterator[str]:
    """Give sentences without end: `before` if given, one opening, then sentences about it."""
    if before:
        yield before
    yield _filled(draw.choice(_OPENINGS), draw)
    while True:
        yield _filled(draw.choice(_MIDDLES), draw)


def _filled(pattern: str, draw: random.Random) -> str:
    words = {
        "role": draw.choice(_ROLES),
        "thing": draw.choice(_THINGS),
        "place": draw.choice(_PLACES),
        "quality": draw.choice(_QUALITIES),
        "act": draw.choice(_ACTS),
        "part": draw.choice(_PARTS),
        "part_too": draw.choice(_PARTS),
        "tone": draw.choice(_TONES),
        "season": draw.choice(_SEASONS),
        "number": str(draw.randint(2, 99_999)),
    }
    text = pattern.format(**words, reason=draw.choice(_REASONS).format(**words))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
