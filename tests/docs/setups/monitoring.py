"""Names of docs/monitoring.md."""

import hashlib
import hmac

SERVICE = True
secret, timestamp, body = b"secret", b"1790000000", b"{}"
signature = "sha256=" + hmac.new(secret, timestamp + b"." + body, hashlib.sha256).hexdigest()
