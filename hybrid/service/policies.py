"""The policy in force: loaded, replaced only by a valid one, recorded when it changes."""

from __future__ import annotations

from pathlib import Path

import structlog

from hybrid.plugins import STRATEGIES, discover
from hybrid.policy.files import LoadedPolicy, load, parse, policy_names
from hybrid.policy.schema import PolicyError
from hybrid.ports import Clock
from hybrid.store.engine import Store
from hybrid.store.marks import last_policy, record_policy
from hybrid.store.tables import PolicyApplied

log = structlog.get_logger(__name__)


class PoliciesInForce:
    """Holds one valid policy at all times. A file that becomes wrong while we run changes
    nothing: the old policy stays, `error` says what is wrong with the new text."""

    def __init__(self, store: Store, own: Path, clock: Clock, wanted: str = "") -> None:
        self._store, self._own, self._clock = store, own, clock
        self._strategies = {name: p.load for name, p in discover(STRATEGIES).items()}
        self.error: str | None = None
        self.current = self._first(wanted)
        self._record("start")

    def _first(self, wanted: str) -> LoadedPolicy:
        """The one asked for, else the one last in force, else the shipped default."""
        with self._store.read() as session:
            last = last_policy(session)
        if wanted:
            return load(wanted, self._own, self._strategies)
        if last is None:
            return load("default", self._own, self._strategies)
        return parse(last.name, last.text, f"{last.name} (as last applied)", self._strategies)

    def use(self, name: str, text: str | None, by: str) -> LoadedPolicy:
        """Put another policy in force. Raises `PolicyError` and changes nothing if it is wrong."""
        loaded = (
            load(name, self._own, self._strategies)
            if text is None
            else parse(name, text, f"{name} (sent by {by})", self._strategies)
        )
        self.current, self.error = loaded, None
        self._record(by)
        return loaded

    def validate(self, name: str, text: str) -> LoadedPolicy:
        return parse(name, text, name, self._strategies)

    def reload(self) -> None:
        """Take up a changed file of the policy in force, if it is valid."""
        path = Path(self.current.source)
        if not path.is_file():
            return
        text = path.read_text()
        if text == self.current.text:
            self.error = None
            return
        try:
            self.current = parse(self.current.name, text, str(path), self._strategies)
        except PolicyError as error:
            if self.error != str(error):
                log.error("policy.kept-old", error=str(error))
            self.error = str(error)
            return
        self.error = None
        self._record("file changed")

    def known(self) -> dict[str, Path]:
        """Every policy that can be found, by name."""
        return policy_names(self._own)

    def load(self, name: str) -> LoadedPolicy:
        return load(name, self._own, self._strategies)

    def _record(self, by: str) -> None:
        with self._store.write() as session:
            last = last_policy(session)
            if last is not None and last.sha256 == self.current.sha256:
                return
            record_policy(
                session,
                PolicyApplied(
                    name=self.current.name,
                    sha256=self.current.sha256,
                    text=self.current.text,
                    at=self._clock.now(),
                    by=by,
                ),
            )
