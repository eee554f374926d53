"""What every provider must do. In a plugin's own tests, one class::

    class TestMine(ProviderContract):
        @pytest.fixture
        def provider(self):
            return MyProvider(endpoint=emulator)

A provider whose world can be made to fail gives a `faults` fixture too (see `Faults`); without
it the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from hybrid.core.model import Offer
from hybrid.ports import (
    BadParameter,
    Instance,
    InstanceState,
    LaunchRequest,
    OutOfCapacity,
    Provider,
    QuotaExceeded,
    Unsupported,
)

PATIENCE_SECONDS = 30.0


class Faults(Protocol):
    """How a test makes the provider's world fail."""

    def no_capacity(self, offer: Offer) -> None: ...
    def room_for(self, offer: Offer, machines: int) -> None: ...
    def no_quota(self, offer: Offer) -> None: ...
    def hide_new_machines(self, seconds: float) -> None: ...
    def lie_on_terminate(self, seconds: float) -> None: ...


class ProviderContract:
    """Inherit and give a `provider` fixture."""

    @pytest.fixture
    def faults(self) -> Faults:
        pytest.skip("this provider's tests give no `faults` fixture")

    # ------------------------------------------------------------------ tools

    def request_for(self, provider: Provider, **changes: object) -> LaunchRequest:
        """A launch of the cheapest offer that has a price."""
        offers = [o for o in provider.offers() if o.price_per_hour]
        cheapest = min(offers, key=lambda o: (o.price_per_hour or 0, o.key))
        token = uuid.uuid4().hex
        values: dict[str, object] = {
            "token": token,
            "offer": cheapest,
            "count": 1,
            "user_data": "#!/bin/bash\ntrue\n",
            "tags": {"hybrid-orchestrator": f"contract-{token[:8]}", "hybrid-lease": token},
            "expires_at": datetime.now(UTC) + timedelta(hours=1),
            "price_ceiling": cheapest.price_per_hour,
        }
        return LaunchRequest(**{**values, **changes})  # type: ignore[arg-type]

    def of(self, provider: Provider, request: LaunchRequest) -> list[Instance]:
        """The living machines with the request's lease tag."""
        return [
            machine
            for machine in provider.instances()
            if machine.tags.get("hybrid-lease") == request.tags["hybrid-lease"]
            and machine.state is not InstanceState.GONE
        ]

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what():
            assert time.monotonic() < deadline, "did not happen in time"
            time.sleep(0.05)

    def end(self, provider: Provider, request: LaunchRequest) -> None:
        def gone() -> bool:
            living = self.of(provider, request)
            for machine in living:
                provider.terminate(machine.id)
            return not living

        self.until(gone)

    # ------------------------------------------------------------------ what must hold

    def test_it_is_a_provider(self, provider: Provider) -> None:
        assert isinstance(provider, Provider)
        assert provider.name
        assert provider.name == provider.name.lower()

    def test_offers_are_complete_and_unique(self, provider: Provider) -> None:
        offers = provider.offers()
        assert offers
        assert len({offer.key for offer in offers}) == len(offers)
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.price_per_hour is None or offer.price_per_hour > 0
            assert offer.price_source
            assert offer.price_as_of.tzinfo is not None
            assert offer.ready_seconds >= 0
            assert (offer.gpus > 0) == bool(offer.gpu_model)

    def test_a_machine_lives_from_launch_to_terminate(self, provider: Provider) -> None:
        request = self.request_for(provider)
        made = provider.launch(request)
        try:
            assert len(made) == 1
            assert made[0].tags == dict(request.tags)
            self.until(lambda: [m.id for m in self.of(provider, request)] == [made[0].id])
            self.until(lambda: self.of(provider, request)[0].state is InstanceState.RUNNING)
            provider.terminate(made[0].id)
            provider.terminate(made[0].id)
            self.until(lambda: self.of(provider, request) == [])
            provider.terminate(made[0].id)
        finally:
            self.end(provider, request)

    def test_terminating_what_was_never_there_is_success(self, provider: Provider) -> None:
        provider.terminate("never-there")

    def test_a_token_launches_once_for_ever(self, provider: Provider) -> None:
        request = self.request_for(provider)
        first = provider.launch(request)
        try:
            again = provider.launch(request)
            assert [m.id for m in again] == [m.id for m in first]
            assert len(self.of(provider, request)) == 1
        finally:
            self.end(provider, request)

    def test_a_token_launches_once_also_side_by_side(self, provider: Provider) -> None:
        """skypilot#656: 100 parallel launches gave duplicate instances."""
        request = self.request_for(provider)
        answers: list[list[str]] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append([m.id for m in provider.launch(request)])
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            assert len(answers) == 6
            assert all(answer == answers[0] for answer in answers)
            assert len(self.of(provider, request)) == 1
        finally:
            self.end(provider, request)

    def test_a_token_for_another_request_is_refused(self, provider: Provider) -> None:
        request = self.request_for(provider)
        provider.launch(request)
        try:
            with pytest.raises(BadParameter):
                provider.launch(replace(request, user_data="#!/bin/bash\nfalse\n"))
        finally:
            self.end(provider, request)

    def test_a_type_that_does_not_exist_is_refused(self, provider: Provider) -> None:
        request = self.request_for(provider)
        wrong = replace(request, offer=replace(request.offer, instance_type="zz9.plural"))
        with pytest.raises((Unsupported, BadParameter)):
            provider.launch(wrong)
        assert self.of(provider, wrong) == []

    def test_the_lifetime_is_enforced_without_us(self, provider: Provider) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        request = self.request_for(provider, expires_at=soon)
        provider.launch(request)
        try:
            self.until(lambda: self.of(provider, request) == [])
        finally:
            self.end(provider, request)

    def test_no_capacity_is_said_and_leaves_nothing(
        self, provider: Provider, faults: Faults
    ) -> None:
        request = self.request_for(provider)
        faults.no_capacity(request.offer)
        with pytest.raises(OutOfCapacity):
            provider.launch(request)
        assert self.of(provider, request) == []

    def test_all_or_nothing(self, provider: Provider, faults: Faults) -> None:
        request = self.request_for(provider, count=3)
        faults.room_for(request.offer, 2)
        with pytest.raises(OutOfCapacity):
            provider.launch(request)
        self.until(lambda: self.of(provider, request) == [])

    def test_quota_is_told_from_capacity(self, provider: Provider, faults: Faults) -> None:
        request = self.request_for(provider)
        faults.no_quota(request.offer)
        with pytest.raises(QuotaExceeded):
            provider.launch(request)

    def test_a_machine_that_is_not_listed_yet_can_be_terminated(
        self, provider: Provider, faults: Faults
    ) -> None:
        faults.hide_new_machines(1.0)
        request = self.request_for(provider)
        made: Sequence[Instance] = provider.launch(request)
        assert self.of(provider, request) == []
        provider.terminate(made[0].id)
        time.sleep(1.2)
        self.until(lambda: self.of(provider, request) == [])

    def test_a_terminate_that_lies_is_seen_through_by_listing(
        self, provider: Provider, faults: Faults
    ) -> None:
        faults.lie_on_terminate(1.0)
        request = self.request_for(provider)
        made = provider.launch(request)
        self.until(lambda: self.of(provider, request) != [])
        provider.terminate(made[0].id)
        assert [m.id for m in self.of(provider, request)] == [made[0].id]
        self.end(provider, request)
