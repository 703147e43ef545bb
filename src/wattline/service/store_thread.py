"""A thread of the service that is woken whenever events were written to the store."""

from __future__ import annotations

import threading

from wattline.service.storage.store import Store


class StoreThread:
    """Runs `_run`, which waits for *_changed* and ends when *_stopping* is set, in a thread."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._changed, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        store.add_listener(self._changed.set)

    def start(self) -> None:
        """Start the thread; it begins with what an earlier process left to do."""
        self._changed.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after what it does now."""
        self._stopping.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
