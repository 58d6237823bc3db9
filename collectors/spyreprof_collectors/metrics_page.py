"""Fetching one Prometheus page over HTTP, within limits."""

from __future__ import annotations

import base64
import http.client
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from spyreprof.errors import UserError
from spyreprof_collectors.secrets import redact_text, strip_userinfo

TIMEOUT_S = 1.0
MAX_PAGE_BYTES = 8 * 2**20
_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*(?:\{.*\})?\s+\S+")
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1|::ffff:127(?:\.\d{1,3}){3}")
_WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})  # noqa: S104  recognised, never bound


class NotPrometheusError(Exception):
    """The address answers, but not with Prometheus text; asking for long is pointless."""


class NoPageError(NotPrometheusError):
    """The server knows no such page; one that is starting may learn it."""


class UnreachableError(Exception):
    """No usable answer this time; a later one may come."""


@dataclass(slots=True)
class Page:
    """A Prometheus page at one address."""

    host: str
    port: int
    path: str = "/metrics"
    scheme: str = "http"
    credentials: str | None = None

    @classmethod
    def of_url(cls, url: str, option: str = "--metrics-url") -> Page:
        """Parse what the user gave with `option`.

        Raises:
            UserError: it is no http(s) URL.
        """
        remedy = f"Give it like this: {option} http://127.0.0.1:8000/metrics"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UserError(f"{option} is not a URL.", remedy) from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UserError(f"{option} {redact_text(url)} is no http address.", remedy)
        credentials = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = "Basic " + base64.b64encode(pair.encode()).decode()
        path = parts.path if parts.path not in {"", "/"} else "/metrics"
        path = quote(path, safe="/%:@!$&'()*+,;=~-._") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, port or (443 if parts.scheme == "https" else 80), path, parts.scheme, credentials)

    @classmethod
    def of_listener(cls, host: str, port: int) -> Page | None:
        """The page of a server that listens on this machine; None for an address that other machines reach alone."""
        if host in _WILDCARDS:
            return cls("127.0.0.1", port)
        return cls(host, port) if _LOOPBACK.fullmatch(host) else None

    @property
    def url(self) -> str:
        """The address as it may be stored: without user, password or secret parameters."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return redact_text(strip_userinfo(f"{self.scheme}://{host}:{self.port}{self.path}"))

    def fetch(self) -> list[str]:
        """Get the page: its sample lines and its `# TYPE` lines, in order.

        Raises:
            NotPrometheusError: there is something else at this address.
            NoPageError: the server knows no such page.
            UnreachableError: no answer, an error of the server, or one that is too large.
        """
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=TIMEOUT_S)
        headers = {"Accept": "text/plain;version=0.0.4", "User-Agent": "spyreprof", "Connection": "close"}
        if self.credentials:
            headers["Authorization"] = self.credentials
        try:
            connection.request("GET", self.path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_PAGE_BYTES + 1) if response.status == 200 else b""
            status, location = response.status, response.headers.get("Location", "")
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        # An application mounted at /metrics answers with the same path and a slash; no other redirect is followed.
        if status in {301, 302, 307, 308} and urlsplit(location).path == "/metrics/" and self.path == "/metrics":
            self.path = "/metrics/"
            return self.fetch()
        if status >= 500 or status == 429:
            raise UnreachableError(f"the server answered {status}")
        if status == 404:
            raise NoPageError(f"it answered {status}")
        if status != 200:
            raise NotPrometheusError(f"it answered {status}")
        if len(body) > MAX_PAGE_BYTES:
            raise NotPrometheusError(f"its page is larger than {MAX_PAGE_BYTES >> 20} MB")
        return prometheus_lines(body.decode("utf-8", "replace"))


def prometheus_lines(text: str) -> list[str]:
    """Pick sample and TYPE lines of a page.

    Raises:
        NotPrometheusError: most lines are nothing of the kind.
    """
    lines: list[str] = []
    foreign = 0
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or (stripped.startswith("#") and not stripped.startswith("# TYPE ")):
            continue
        if stripped.startswith("#") or _SAMPLE.match(stripped):
            lines.append(stripped)
        else:
            foreign += 1
    if foreign > len(lines):
        raise NotPrometheusError("it answered with something else than Prometheus text")
    return lines
