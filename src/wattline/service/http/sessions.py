"""Sessions of browsers: a random cookie, of which the hash is stored, in place of a token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

from wattline.errors import NotAllowed
from wattline.service.http.auth import Principal, TokenStore, UnknownToken, hash_token
from wattline.service.storage.store import Store

SESSION_S = 12 * 3600.0
_CSRF_BYTES = 32


class SessionStore:
    """Sessions of a store. A session ends with its token, or after 12 hours."""

    def __init__(self, store: Store, tokens: TokenStore, clock: Callable[[], float]) -> None:
        self._store, self._tokens, self._clock = store, tokens, clock

    def create(self, token: str) -> str:
        """Start a session of a token and return its secret; raise `UnknownToken` if the token is invalid."""
        self._tokens.authenticate(token)
        return self._create(hash_token(token))

    def create_for_name(self, name: str) -> str:
        """Start a session of the current token of a name; raise `UnknownToken` if there is none."""
        return self._create(self._find_token(name))

    def authenticate_name(self, name: str) -> Principal:
        """Return the caller of the current token of a name, which a proxy vouches for."""
        return self._tokens.authenticate_hash(self._find_token(name))

    def _find_token(self, name: str) -> str:
        found = self._store.read_rows(
            "SELECT hash FROM token WHERE name = ? ORDER BY created_s DESC, rowid DESC LIMIT 1", (name,)
        )
        if not found:
            raise UnknownToken(
                f"the proxy named the user {name!r}, and there is no token of that name",
                f"wattline token add {name} --role viewer",
            )
        return str(found[0][0])

    def _create(self, token_hash: str) -> str:
        secret, now_s = secrets.token_urlsafe(32), self._clock()
        self._store.execute(
            ("DELETE FROM session WHERE expires_s < ?", (now_s,)),
            ("INSERT INTO session VALUES (?, ?, ?)", (hash_token(secret), token_hash, now_s + SESSION_S)),
        )
        return secret

    def authenticate(self, secret: str) -> Principal:
        """Return the caller of a session; raise `UnknownToken` if the session or its token has ended."""
        found = self._store.read_rows(
            "SELECT token, expires_s FROM session WHERE hash = ?", (hash_token(secret),)
        )
        if not found or self._clock() >= found[0][1]:
            raise UnknownToken("the session has ended, or is unknown", "log in again")
        return self._tokens.authenticate_hash(str(found[0][0]))

    def end(self, secret: str) -> None:
        """End a session; nothing happens if it has ended."""
        self._store.execute(("DELETE FROM session WHERE hash = ?", (hash_token(secret),)))


def build_csrf_token(secret: str) -> str:
    """Return a token that only pages of this session know; it differs every time.

    It is masked, so that compressed pages of many requests do not reveal it by their length.
    """
    mask = secrets.token_bytes(_CSRF_BYTES)
    return base64.urlsafe_b64encode(mask + _apply_mask(_derive(secret), mask)).decode()


def check_csrf_token(secret: str, token: str) -> None:
    """Raise `NotAllowed` unless *token* was built for this session."""
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii"))
    except ValueError:
        raw = b""
    mask, masked = raw[:_CSRF_BYTES], raw[_CSRF_BYTES:]
    if len(raw) != 2 * _CSRF_BYTES or not hmac.compare_digest(_apply_mask(masked, mask), _derive(secret)):
        raise NotAllowed(
            "the header X-CSRF-Token is missing or not of this session",
            "load the page again; programs send Authorization: Bearer TOKEN instead of a cookie",
        )


def _derive(secret: str) -> bytes:
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).digest()


def _apply_mask(data: bytes, mask: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(data, mask, strict=False))
