"""Delivery of one message: a signed POST that follows no redirect and uses no proxy."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import wattline
from wattline.errors import ConfigError
from wattline.service.notifications.outbox import Message

TIMEOUT_S = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that takes a redirect for an error: it could lead to an origin that is not allowed."""

    def redirect_request(self, *args: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def sign(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a message: HMAC-SHA256 of the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def deliver(message: Message, secret: bytes, now_s: float) -> str:
    """Send a message; return the problem, empty if the receiver answered 2xx."""
    body, timestamp = message.body.encode(), str(int(now_s))
    request = urllib.request.Request(
        message.url,
        data=body,
        method="POST",
        headers={
            "Content-Type": "application/json",
            "User-Agent": f"wattline/{wattline.__version__}",
            "X-Wattline-Event": message.event,
            "X-Wattline-Delivery": message.id,
            "X-Wattline-Timestamp": timestamp,
            "X-Wattline-Signature": sign(secret, timestamp, body),
        },
    )
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as answer:
            return "" if 200 <= answer.status < 300 else f"answered {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            return f"answered {error.code}"
    except (OSError, ValueError) as error:  # ValueError: an invalid answer
        return f"{type(error).__name__}: {getattr(error, 'reason', None) or error}"


def read_secret(path: Path) -> bytes:
    """Return the secret of a file; a missing file is created with a new one, for its owner only."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot hold the secret of webhooks: {error.strerror}") from None
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
    try:
        secret = path.read_text().strip().encode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the secret of webhooks cannot be read: {error}") from None
    if len(secret) < 16:
        raise ConfigError(
            f"{path}: the secret of webhooks has {len(secret)} characters, expected at least 16"
        )
    return secret
