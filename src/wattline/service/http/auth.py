"""Authentication by bearer tokens, of which only hashes are stored, and roles."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError, NotAllowed, NotFound
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

ROLES = ("viewer", "user", "operator")
"""Roles by rights, each with those of the one before: read; submit and change own jobs; change everything."""


@dataclass(frozen=True)
class Principal:
    """An authenticated caller."""

    name: str
    user: str  # user that its jobs run as; empty: the user of the service
    role: str

    def require_role(self, role: str) -> None:
        """Raise `NotAllowed` unless the caller has at least the rights of *role*."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise NotAllowed(f"token {self.name} has the role {self.role}, expected {role}")

    def require_owner(self, user: str, job: str) -> None:
        """Raise `NotAllowed` unless the caller may change a job of *user*."""
        self.require_role("user")
        if self.role != "operator" and self.user != user:
            raise NotAllowed(
                f"job {job} belongs to {user or 'the service'}; token {self.name} has the role {self.role},"
                " expected the owner or an operator"
            )


class UnknownToken(NotAllowed):
    """The request has no token, or one that is unknown or expired."""

    code = "unknown_token"


class TokenStore:
    """Tokens of a store, with a cache of those in use."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._cache: dict[str, tuple[Principal, float | None]] = {}  # by hash: caller, and expiry time
        self._lock = threading.Lock()

    def create(self, name: str, role: str, user: str = "", lasts_s: float | None = None) -> str:
        """Create a token and return it; only its hash is stored. *lasts_s* None: it does not expire."""
        if role not in ROLES:
            raise ConfigError(f"role is {role!r}, expected one of {', '.join(ROLES)}")
        token = secrets.token_urlsafe(32)
        now_s = self._clock()
        expires_s = None if lasts_s is None else now_s + lasts_s
        event = NewEvent(now_s, "token", None, {"created": name, "role": role, "user": user})
        self._store.add_token(event, hash_token(token), name, user, role, expires_s)
        return token

    def authenticate(self, token: str | None) -> Principal:
        """Return the caller of a token; raise `UnknownToken` if it is missing, unknown or expired."""
        if not token:
            raise UnknownToken("the request has no token, expected the header Authorization: Bearer TOKEN")
        key = hash_token(token)
        with self._lock:
            entry = self._cache.get(key)
        if entry is None:
            row = self._store.token(key)
            if row is None:
                raise UnknownToken("the token is unknown to this service")
            name, user, role, expires_s = row
            entry = Principal(name, user, role), expires_s
            with self._lock:
                self._cache[key] = entry
        principal, expires_s = entry
        if expires_s is not None and self._clock() >= expires_s:
            raise UnknownToken(f"the token of {principal.name} has expired", "ask an operator for a new one")
        return principal

    def list_tokens(self) -> list[dict[str, Any]]:
        """Return name, user, role, created_s and expires_s of all tokens, oldest first."""
        return self._store.tokens()

    def revoke(self, name: str) -> None:
        """Delete all tokens of a name; raise `NotFound` if there are none."""
        if not self._store.tokens(name):
            raise NotFound(f"there is no token named {name!r}", "wattline token list")
        self._store.delete_tokens(NewEvent(self._clock(), "token", None, {"revoked": name}), name)
        with self._lock:
            self._cache.clear()

    def ensure_service_token(self, folder: Path) -> str:
        """Return the operator token in the file `token` of *folder*, created if it is missing or unknown.

        Only the user of the service can read that file.
        """
        path = folder / "token"
        try:
            token = path.read_text().strip()
            self.authenticate(token)
            return token
        except (OSError, UnknownToken):
            pass
        token = self.create("service", "operator")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as text:
            os.fchmod(file, 0o600)
            text.write(token + "\n")
        return token


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token. Tokens have 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
