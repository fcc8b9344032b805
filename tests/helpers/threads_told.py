"""Waiting, in a coroutine, for what a thread tells: without turns of the loop, which would keep the thread from it."""

from anyio import to_thread

PATIENCE = 60.0


async def until(event):
    """Wait for a ``threading.Event``, whatever the event loop's library."""
    assert await to_thread.run_sync(event.wait, PATIENCE, abandon_on_cancel=True)
