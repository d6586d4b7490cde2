"""A session's derived id: a remote's URL reduced to what all its spellings share.

The derived id only names a session that doesn't exist yet; once the state branch exists, its
``meta`` record is the identity.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote, urlsplit

_SCP = re.compile(r"(?:[^@/]*@)?(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<path>.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL = re.compile(
    r"(?P<scheme>[^:]+)://(?:[^/?#]*@)?(?P<host>\[[^\]/]*\]|[^:/?#]*)"
    r"(?P<port>:[^/?#]*)?(?P<path>[^?#]*)",
    re.DOTALL,
)
_DEFAULT_PORTS = {22, 80, 443, 9418}
_SAME_HOST = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}
_CASELESS_HOSTS = {"github.com", "gitlab.com", "bitbucket.org", "codeberg.org"}


def is_path(url: str) -> bool:
    """Whether git reads `url` as a place on this machine (a path or ``file://``)."""
    if _SCHEME.match(url):
        return url.lower().startswith("file://")
    colon, slash = url.find(":"), url.find("/")
    return colon == -1 or (slash != -1 and slash < colon)


def local_path(url: str) -> str:
    """The path that a URL for which `is_path` holds names."""
    return unquote(urlsplit(url).path) if _SCHEME.match(url) else url


def reduce_url(url: str) -> str:
    """``host/path`` of a remote, the same for every spelling of it; no secret stays in it.

    A path (for which `is_path` holds) must have been resolved by the caller.
    """
    if is_path(url):
        return _trim(local_path(url)) or "/"
    host, port, path = _parts(url)
    host = host.lower().removeprefix("www.")
    host = _SAME_HOST.get(host, host)
    path = _trim(re.sub(r"/{2,}", "/", unquote(path)).strip("/"))
    if host in _CASELESS_HOSTS:
        path = path.lower()
    shown = host if port is None or port in _DEFAULT_PORTS else f"{host}:{port}"
    if host in _SAME_HOST.values():
        shown = host
    return f"{shown}/{path}"


def _parts(url: str) -> tuple[str, int | None, str]:
    """Host, port and path; odd text is taken as it is, since git, not forge, is to refuse it."""
    if match := _URL.match(url):
        digits = (match["port"] or "")[1:]
        port = int(digits) if digits.isascii() and digits.isdigit() else None
        return match["host"].strip("[]"), port, match["path"]
    if match := _SCP.fullmatch(url):
        return match["host"].strip("[]"), None, match["path"].split("?")[0]
    return "", None, url


def _trim(path: str) -> str:
    return path.rstrip("/").removesuffix(".git").rstrip("/")


def derived_id(url: str) -> str:
    """The first 12 hex digits of the SHA-256 of `reduce_url`."""
    return hashlib.sha256(reduce_url(url).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def without_secret(url: str) -> str:
    """`url` as it may be shown: no user, password, query."""
    if not _SCHEME.match(url):
        return url
    match = _URL.match(url)
    assert match is not None, "what has a scheme matches"
    return f"{match['scheme'].lower()}://{match['host']}{match['port'] or ''}{match['path']}"


def redact(text: str) -> str:
    """`text` (a tool's words) without the user, password and query of any URL in it."""
    text = re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://[^?\s'\"]*)\?[^\s'\"]*", r"\1", text)
    return re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s]*@", r"\1", text)
