"""A few things at once, with threads that an interrupted run does not wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
# Few connections: the index belongs to everybody.
WORKERS = 4


def together(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``work`` of every item, in their order. The first failure is raised, and what has not begun is left.

    The threads are daemons: Ctrl-C ends the run now, and not when the slowest server has answered.
    """
    wanted = list(items)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, R | None, BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()
    for number in range(len(wanted)):
        todo.put(number)

    def serve() -> None:
        while not stop.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((number, work(wanted[number]), None))
            except BaseException as error:
                done.put((number, None, error))

    for _ in range(min(WORKERS, len(wanted))):
        threading.Thread(target=serve, daemon=True).start()
    results: dict[int, R] = {}
    try:
        for _ in wanted:
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result  # type: ignore[assignment]
    finally:
        stop.set()
    return [results[number] for number in range(len(wanted))]
