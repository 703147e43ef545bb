"""Who may do what: bearer tokens, of which only a hash is kept."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import ConfigError, NotAllowed, NotFound
from wattline.service.storage.store import Happened, Store

ROLES = ("viewer", "user", "operator")
"""Each may do what those before it may: look; submit, and change what is one's own; change anything."""

_COLUMNS = "name, user, role, made_s, expires_s"


@dataclass(frozen=True)
class Who:
    """Somebody who has shown a token."""

    name: str
    user: str  # as whom jobs run; empty: as the service does
    role: str

    def must_be(self, role: str) -> None:
        """Raise unless they may do what *role* may."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise NotAllowed(f"{self.name} is {self.role}, expected {role}")

    def must_own(self, user: str, job: str) -> None:
        """Raise unless they may change a job of *user*."""
        self.must_be("user")
        if self.role != "operator" and self.user != user:
            raise NotAllowed(f"job {job} is of {user or 'the service'}, and {self.name} is no operator")


class Unknown(NotAllowed):
    """Somebody without a token, or with one that is not good."""

    code = "unknown_token"


class Tokens:
    """The tokens of a store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._known: dict[str, tuple[Who, float | None]] = {}
        self._guard = threading.Lock()

    def make(self, name: str, role: str, user: str = "", lasts_s: float | None = None) -> str:
        """A new token; what this answers is nowhere else."""
        if role not in ROLES:
            raise ConfigError(f"role is {role!r}, expected one of {', '.join(ROLES)}")
        token = secrets.token_urlsafe(32)
        now_s = self._clock()
        expires_s = None if lasts_s is None else now_s + lasts_s
        row = (hashed(token), name, user, role, now_s, expires_s)
        self._store.append(
            Happened(now_s, "token", None, {"made": name, "role": role, "user": user}),
            also=[("INSERT INTO token VALUES (?, ?, ?, ?, ?, ?)", row)],
        )
        return token

    def check(self, token: str | None) -> Who:
        """Who that is; an `Unknown` says why not."""
        if not token:
            raise Unknown("no token was given, expected the header Authorization: Bearer TOKEN")
        key = hashed(token)
        with self._guard:
            found = self._known.get(key)
        if found is None:
            rows = self._store.rows("SELECT name, user, role, expires_s FROM token WHERE hash = ?", (key,))
            if not rows:
                raise Unknown("the token is not known here")
            name, user, role, expires_s = rows[0]
            found = Who(name, user, role), expires_s
            with self._guard:
                self._known[key] = found
        who, until_s = found
        if until_s is not None and self._clock() >= until_s:
            raise Unknown(f"the token of {who.name} has expired", "ask an operator for a new one")
        return who

    def all(self) -> list[dict[str, object]]:
        """Whose tokens there are."""
        names = _COLUMNS.split(", ")
        rows = self._store.rows(f"SELECT {_COLUMNS} FROM token ORDER BY made_s")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def revoke(self, name: str) -> None:
        """Forget all tokens of a name."""
        if not self._store.rows("SELECT 1 FROM token WHERE name = ?", (name,)):
            raise NotFound(f"there is no token of {name!r}")
        self._store.append(
            Happened(self._clock(), "token", None, {"revoked": name}),
            also=[("DELETE FROM token WHERE name = ?", (name,))],
        )
        with self._guard:
            self._known.clear()

    def own(self, folder: Path) -> str:
        """The token of who runs the service, in a file that only they can read; made if it is missing."""
        path = folder / "token"
        try:
            token = path.read_text().strip()
            self.check(token)
            return token
        except (OSError, Unknown):
            pass
        token = self.make("service", "operator")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as text:
            os.fchmod(file, 0o600)
            text.write(token + "\n")
        return token


def hashed(token: str) -> str:
    """What is kept of a token. It has 256 random bits: a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
