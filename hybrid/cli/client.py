"""A small HTTP client for the gateway with errors that become exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    import urllib.error
    import urllib.request

PREFIX = "/api/hybrid/v1"
TIMEOUT_SECONDS = 30.0

FAILED, USAGE, NOT_FOUND, DENIED, UNREACHABLE, REFUSED, TIMED_OUT = 1, 2, 3, 4, 5, 6, 7
_EXIT_OF_STATUS = {400: USAGE, 401: DENIED, 403: DENIED, 404: NOT_FOUND, 409: REFUSED}


class CliError(Exception):
    """Ends the command: the text goes to standard error, `hint` below it."""

    def __init__(self, text: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.hint, self.exit_code = hint, exit_code


class Client:
    """Calls to one gateway."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address.rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            self.address = f"http://{self.address}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: object) -> Any:
        wanted = {key: value for key, value in query.items() if value is not None}
        suffix = f"?{urlencode(wanted, doseq=True)}" if wanted else ""
        return self._call("GET", PREFIX + path + suffix)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        return self._call("POST", PREFIX + path, body if body is not None else {})

    def put(self, path: str, body: Mapping[str, object]) -> Any:
        return self._call("PUT", PREFIX + path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", PREFIX + path)

    def logs(self, job_id: str) -> str:
        return str(self._call("GET", f"/api/jobs/{part(job_id)}/logs")["logs"])

    def version(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._call("GET", "/api/version")
        return found

    def events(self, after: int) -> Iterator[Mapping[str, Any]]:
        """The server-sent stream of events, until it breaks."""
        import urllib.error
        import urllib.request

        request = self._request("GET", f"{PREFIX}/events/stream?after={after}", None)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as stream:
                for line in stream:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
        except urllib.error.HTTPError as error:
            self._refused(error)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise self._unreachable(error) from error

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> urllib.request.Request:
        import urllib.request

        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        return urllib.request.Request(self.address + path, data, headers, method=method)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        import urllib.error
        import urllib.request

        try:
            with urllib.request.urlopen(
                self._request(method, path, body), timeout=TIMEOUT_SECONDS
            ) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            self._refused(error)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> CliError:
        reason = getattr(error, "reason", error)
        return CliError(
            f"no Hybrid gateway answers at {self.address}: {reason}",
            "start one with `hybrid up`, or name it with --address or HYBRID_ADDRESS",
            UNREACHABLE,
        )

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        text = error.read().decode(errors="replace")
        hint = ""
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if isinstance(body, dict):
            text, hint = str(body.get("error") or body.get("detail") or text), body.get("hint", "")
        if error.code in (401, 403) and not hint:
            hint = "give a token with --token, HYBRID_TOKEN or RAY_AUTH_TOKEN"
        raise CliError(text.strip(), hint, _EXIT_OF_STATUS.get(error.code, FAILED)) from error


def part(text: str) -> str:
    """One part of a path, whatever characters it has."""
    return quote(text, safe="")
