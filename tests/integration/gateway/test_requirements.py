"""From flags and metadata to a gang: every refusal names field, value and rule."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from hybrid.core.model import Gang, MarketChoice, Place, Requirements
from hybrid.core.policy import JobPolicy
from hybrid.core.units import GIB
from hybrid.gateway.requirements import (
    BadRequest,
    environment_key,
    parse_body,
    requirements_of,
)
from hybrid.testing.builders import NOW


def ask(metadata: dict[str, str] | None = None, **fields: object) -> Requirements:
    body = {"entrypoint": "python x.py", "metadata": metadata or {}, **fields}
    return requirements_of(parse_body(body), JobPolicy(), NOW)


def test_a_job_that_asks_for_nothing_gets_a_cpu() -> None:
    assert ask() == Requirements(Gang(gpus_per_node=0, cpus=1.0))


@pytest.mark.parametrize(
    ("fields", "metadata", "gang"),
    [
        ({"entrypoint_num_gpus": 2}, {}, Gang(gpus_per_node=2, cpus=0.0)),
        ({"entrypoint_num_gpus": 0.5}, {}, Gang(gpus_per_node=1, cpus=0.0)),
        ({"entrypoint_num_cpus": 3}, {}, Gang(cpus=3.0)),
        ({}, {"hybrid.gpus": "8", "hybrid.nodes": "2"}, Gang(2, 4, 0.0)),
        ({"entrypoint_num_gpus": 1}, {"hybrid.gpus": "4"}, Gang(gpus_per_node=4, cpus=0.0)),
        (
            {"entrypoint_memory": GIB, "entrypoint_resources": {"x": 1}},
            {"hybrid.gpu_model": "A100", "hybrid.gpu_memory": "40"},
            Gang(1, 0, 1.0, GIB, "A100", 40 * GIB, (("x", 1.0),)),
        ),
    ],
)
def test_the_gang(fields: dict[str, object], metadata: dict[str, str], gang: Gang) -> None:
    assert ask(metadata, **fields).gang == gang


def test_the_wishes() -> None:
    wishes = ask(
        {
            "hybrid.place": "onprem",
            "hybrid.market": "spot-ok",
            "hybrid.project": "vision",
            "hybrid.priority": "-3",
            "hybrid.deadline": "+6h",
            "hybrid.max_cost": "12.50",
            "hybrid.max_runtime": "90m",
            "hybrid.runtime": "1.5h",
            "somebody.else": "is free to write what they like",
        }
    )
    assert (wishes.place, wishes.market) == (Place.ONPREM, MarketChoice.SPOT_OK)
    assert (wishes.project, wishes.priority) == ("vision", -3)
    assert wishes.deadline == NOW + timedelta(hours=6)
    assert wishes.max_cost == Decimal("12.50")
    assert wishes.max_runtime_seconds == wishes.runtime_estimate_seconds == 5400


@pytest.mark.parametrize(
    ("metadata", "fields", "says"),
    [
        ({"hybrid.gpu": "1"}, {}, r"unknown metadata key hybrid\.gpu.*did you mean hybrid\.gpus"),
        ({"hybrid.gpus": "-1"}, {}, "must be from 0"),
        ({"hybrid.gpus": "1.5"}, {}, "not a whole number"),
        ({"hybrid.gpus": "999999999"}, {}, "must be from 0 to 100000"),
        ({"hybrid.gpus": "3", "hybrid.nodes": "2"}, {}, "cannot be split evenly"),
        ({"hybrid.gpus": "1"}, {"entrypoint_num_gpus": 2}, "driver's cards are part of the gang"),
        ({"hybrid.gpus": "4", "hybrid.nodes": "2"}, {"entrypoint_num_gpus": 3}, "more than the 2"),
        ({"hybrid.nodes": "2"}, {"entrypoint_num_gpus": 3}, "does not divide"),
        ({"hybrid.nodes": "0"}, {}, "must be from 1"),
        ({"hybrid.place": "clowd"}, {}, r"none of: any, onprem, cloud \(did you mean cloud\?\)"),
        ({"hybrid.market": "cheap"}, {}, "none of: on-demand, spot-ok, spot"),
        ({"hybrid.deadline": "tomorrow"}, {}, "with its zone"),
        ({"hybrid.deadline": "2030-01-01T00:00:00"}, {}, "with its zone"),
        ({"hybrid.deadline": "2020-01-01T00:00:00Z"}, {}, "has passed"),
        ({"hybrid.max_cost": "lots"}, {}, "not an amount"),
        ({"hybrid.max_cost": "NaN"}, {}, "not an amount"),
        ({"hybrid.max_runtime": "-5m"}, {}, "not a duration"),
        ({"hybrid.runtime": "0"}, {}, "not a duration"),
        ({"hybrid.gpu_memory": "40 bananas"}, {}, "not a size"),
        ({"hybrid.project": "a b"}, {}, "letters, digits"),
        ({"hybrid.priority": "9999"}, {}, "from -1000 to 1000"),
        ({}, {"entrypoint_num_gpus": -1}, "from 0"),
        ({}, {"entrypoint_num_gpus": float("nan")}, "from 0"),
        ({}, {"entrypoint_num_gpus": 1e30}, "from 0"),
        ({}, {"submission_id": "a/b"}, "no '/'"),
        ({}, {"submission_id": "x" * 300}, "1 to 200"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    metadata: dict[str, str], fields: dict[str, object], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        ask(metadata, **fields)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "entrypoint"),
        ({"entrypoint": 3}, "entrypoint must be a string"),
        ({"entrypoint": "x", "metadata": {"k": 1}}, "metadata values must be strings"),
        ({"entrypoint": "x", "metadata": []}, "metadata must be a dict"),
        ({"entrypoint": "x", "runtime_env": "y"}, "runtime_env must be a dict"),
        ({"entrypoint": "x", "entrypoint_num_gpus": "1"}, "must be a number"),
        ({"entrypoint": "x", "entrypoint_num_gpus": True}, "must be a number"),
        ({"entrypoint": "x", "entrypoint_memory": 1.5}, "must be an integer"),
        ({"entrypoint": "x", "entrypoint_resources": {"a": "b"}}, "values must be numbers"),
        ({"entrypoint": "x", "surprise": 1}, "unexpected keyword argument 'surprise'"),
    ],
)
def test_wrong_types_are_refused_in_rays_own_words(body: dict[str, object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        parse_body(body)


def test_the_environment_key_ignores_code_and_variables() -> None:
    same = environment_key({"working_dir": "gcs://a.zip", "env_vars": {"A": "1"}})
    assert same == environment_key({}) == ""
    torch = environment_key({"pip": ["torch"], "env_vars": {"A": "1"}})
    assert torch == environment_key({"pip": ["torch"]}) != ""
    assert torch != environment_key({"pip": ["jax"]})
