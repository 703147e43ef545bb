"""Authentication by bearer tokens, of which only hashes are stored, and roles."""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError, Conflict, NotAllowed, NotFound
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

SERVICE = "service"
"""Name of the service's own token, which commands on this machine read from a file."""

ROLES = ("viewer", "user", "operator")
"""Roles by rights, each with those of the one before: read; submit and change own jobs; change everything."""


@dataclass(frozen=True)
class Principal:
    """An authenticated caller."""

    name: str
    user: str  # user that its jobs run as; empty: the user of the service
    role: str
    has_cookie: bool = False  # a browser's session, not a bearer token

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

    def require_bearer(self) -> None:
        """Raise `NotAllowed` for the session of a browser: tokens are managed with a token only."""
        if self.has_cookie:
            raise NotAllowed("tokens cannot be managed in a browser's session", "wattline token")


class UnknownToken(NotAllowed):
    """The request has no token, or one that is unknown or expired."""

    code = "unknown_token"


class TokenStore:
    """Tokens of a store, with a cache of those in use. Names are unique."""

    def __init__(self, store: Store, clock: Callable[[], float], folder: Path | None = None) -> None:
        self._store, self._clock, self._folder = store, clock, folder
        self._cache: dict[str, tuple[Principal, float | None]] = {}  # by hash: caller, and expiry time
        self._generation = 0  # of the cache: rows read before tokens were changed must not enter it
        self._lock = threading.Lock()
        self._change_lock = threading.Lock()  # held from reading the tokens to the end of a change

    def create(self, name: str, role: str, user: str = "", lasts_s: float | None = None, by: str = "") -> str:
        """Create a token and return it; only its hash is stored. *lasts_s* None: it does not expire.

        Raise `Conflict` if the name is taken, `ConfigError` if jobs of *user* cannot run here.
        """
        if role not in ROLES:
            raise ConfigError(f"role is {role!r}, expected one of {', '.join(ROLES)}")
        if user:
            _check_token_user(user, role)
        with self._change_lock:
            if name == SERVICE or self._store.tokens(name):
                raise Conflict(
                    f"a token named {name!r} exists already; names are unique",
                    f"another name, wattline token rotate {name}, or wattline token revoke {name}",
                )
            return self._add(name, role, user, lasts_s, {"created": name, "by": by})

    def _add(self, name: str, role: str, user: str, lasts_s: float | None, about: dict[str, Any]) -> str:
        token = secrets.token_urlsafe(32)
        now_s = self._clock()
        expires_s = None if lasts_s is None else now_s + lasts_s
        event = NewEvent(now_s, "token", None, {**about, "role": role, "user": user})
        self._store.add_token(event, hash_token(token), name, user, role, expires_s)
        return token

    def authenticate(self, token: str | None) -> Principal:
        """Return the caller of a token; raise `UnknownToken` if it is missing, unknown or expired."""
        if not token:
            raise UnknownToken("the request has no token, expected the header Authorization: Bearer TOKEN")
        return self.authenticate_hash(hash_token(token))

    def authenticate_hash(self, key: str) -> Principal:
        """Return the caller of the token with this hash; raise `UnknownToken` as `authenticate` does."""
        with self._lock:
            entry, generation = self._cache.get(key), self._generation
        if entry is None:
            row = self._store.token(key)
            if row is None:
                raise UnknownToken("the token is unknown to this service", "it may have been revoked")
            name, user, role, expires_s = row
            entry = Principal(name, user, role), expires_s
            with self._lock:
                if generation == self._generation:
                    self._cache[key] = entry
        principal, expires_s = entry
        if expires_s is not None and self._clock() >= expires_s:
            raise UnknownToken(f"the token of {principal.name} has expired", "ask an operator for a new one")
        return principal

    def list_tokens(self) -> list[dict[str, Any]]:
        """Return name, user, role, created_s and expires_s of all tokens, oldest first."""
        return self._store.tokens()

    def revoke(self, name: str, by: str = "") -> None:
        """Delete the token of a name, valid from the next request on; raise `NotFound` if there is none.

        With the service's own token its file is deleted; the next start makes a new one.
        """
        with self._change_lock:
            self._find(name)
            self._store.delete_tokens(
                NewEvent(self._clock(), "token", None, {"revoked": name, "by": by}), name
            )
            self._empty_cache()
            if name == SERVICE and self._folder is not None:
                (self._folder / "token").unlink(missing_ok=True)

    def rotate(self, name: str, grace_s: float = 0.0, by: str = "") -> str:
        """Replace the secret of a token and return the new one; the old is valid for *grace_s* more.

        Name, user, role and expiry stay. The service's own token is written to its file.
        """
        with self._change_lock:
            old, now_s = self._find(name)[-1], self._clock()
            token = secrets.token_urlsafe(32)
            about = {"rotated": name, "role": old["role"], "user": old["user"], "grace_s": grace_s, "by": by}
            event = NewEvent(now_s, "token", None, about)
            if name == SERVICE and self._folder is not None:
                # The file first: a command that finds the new token before it is known asks again.
                _write_private(self._folder / "token", token)
            self._store.rotate_token(event, name, hash_token(token), now_s + grace_s)
            self._empty_cache()
            return token

    def _find(self, name: str) -> list[dict[str, Any]]:
        """Return the tokens of a name, the current one last; raise `NotFound` if there is none."""
        found = self._store.tokens(name)
        if not found:
            raise NotFound(f"there is no token named {name!r}", "wattline token list")
        return found

    def _empty_cache(self) -> None:
        with self._lock:
            self._cache.clear()
            self._generation += 1

    def ensure_service_token(self, folder: Path) -> str:
        """Return the operator token in the file `token` of *folder*, created if it is missing or unknown.

        Only the user of the service can read that file.
        """
        self._folder, path = folder, folder / "token"
        try:
            token = path.read_text().strip()
            self.authenticate(token)
            return token
        except (OSError, UnknownToken):
            pass
        if self._store.tokens(SERVICE):
            return self.rotate(SERVICE)
        token = self._add(SERVICE, "operator", "", None, {"created": SERVICE, "by": SERVICE})
        _write_private(path, token)
        return token


def _check_token_user(user: str, role: str) -> None:
    """Raise `ConfigError` unless *user* exists, and this process can run its jobs if *role* submits any."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(
            f"user: {user!r} does not exist on this machine, expected a user that runs the jobs",
            "getent passwd lists the users",
        ) from None
    if role != "viewer" and os.geteuid() not in (0, uid):
        me = pwd.getpwuid(os.geteuid()).pw_name
        raise ConfigError(
            f"user: jobs of user {user} cannot run: the service runs as {me}, and only root runs jobs of"
            " others",
            f"--user {me}, or run the service as root",
        )


def _write_private(path: Path, token: str) -> None:
    """Write the file of a token, which only its user can read, atomically."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as text:
        text.write(token + "\n")
    new.replace(path)


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token. Tokens have 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
