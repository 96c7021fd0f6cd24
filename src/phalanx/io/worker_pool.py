"""Ordered parallel map over worker processes or Ray tasks."""

import collections
import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from phalanx.extras import require_extra

Item = TypeVar("Item")
Result = TypeVar("Result")

# Number of items per worker that may be processed ahead of the caller. Their results are kept in memory.
_AHEAD_PER_WORKER = 4
_CONNECT_SECONDS = 10.0
# Shared memory of a local Ray cluster. It only holds results that the caller has not received yet.
_OBJECT_STORE_BYTES = 256 << 20
_MAX_RETRIES = 2

_function: Callable[[Any], Any]


class WorkerPoolError(RuntimeError):
    """Raised if a worker process dies, or if Ray fails or cannot be reached."""


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # macOS cannot restrict a process to some of the cores.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int | None = None,
    ray_address: str | None = None,
    use_ray: bool = False,
) -> Generator[Result, None, None]:
    """Apply a function to items in parallel, and yield the results in the order of the items.

    If the function raises an exception, the generator raises it in place of the result. If you do not exhaust
    the generator, close it to stop the workers. A script that uses several workers needs
    `if __name__ == "__main__":`.

    Args:
        function: Picklable function, which is sent to each worker once.
        items: Picklable items to which the function is applied.
        workers: Number of processes, or of concurrent Ray tasks. Defaults to the number of cores (of the
            cluster, if Ray is used). If it is 1 and Ray is not used, the function runs in this process.
        ray_address: Address of a running Ray cluster. If it is given, Ray is used.
        use_ray: Use Ray. If there is no address, a local cluster is started.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    items = list(items)
    if use_ray or ray_address is not None:
        yield from _map_on_ray(function, items, workers, ray_address)
        return
    count = min(workers or usable_cores(), len(items))
    if count <= 1:
        yield from map(function, items)
        return
    yield from _map_in_processes(function, items, count)


def _map_in_processes(
    function: Callable[[Item], Result], items: list[Item], workers: int
) -> Generator[Result, None, None]:
    try:
        payload = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the function cannot be sent to other processes ({error}); use one worker"
        ) from error
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_init_worker, initargs=(payload,)
    )

    def submit(item: Item) -> "Future[Result]":
        with _blocked_sigint():
            return executor.submit(_call, item)

    try:
        for future in _submit_ahead(submit, items, _AHEAD_PER_WORKER * workers):
            yield future.result()
    except BrokenProcessPool as error:
        raise WorkerPoolError(
            "a worker process died; results up to here are kept: run it again to continue, with fewer "
            "workers if memory ran out"
        ) from error
    finally:
        # The executor has no way to stop a running task.
        processes = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _submit_ahead(submit: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield `submit(item)` for each item, in order. `submit` is called for up to `ahead` items in advance."""
    waiting = iter(items)
    submitted = collections.deque(map(submit, itertools.islice(waiting, ahead)))
    while submitted:
        yield submitted.popleft()
        submitted.extend(map(submit, itertools.islice(waiting, 1)))


@contextlib.contextmanager
def _blocked_sigint() -> Iterator[None]:
    """Block SIGINT while a worker is started, so that the worker inherits the blocked signal.

    A Ctrl-C during this time is handled by this process afterward.
    """
    # Starting the resource tracker, as the first worker does, would unblock the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _init_worker(payload: bytes) -> None:
    global _function
    # Ctrl-C is for the parent process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The other cores have workers of their own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _function = pickle.loads(payload)


def _exit_with_parent() -> None:
    """End this process when its parent process ends, even if the parent is killed with SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(item: Any) -> Any:
    return _function(item)


def _map_on_ray(
    function: Callable[[Item], Result], items: list[Item], workers: int | None, address: str | None
) -> Generator[Result, None, None]:
    ray = require_ray("a Ray worker pool")
    with ray_cluster(address, workers):
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray does not resolve a reference in a list, so each worker fetches the function only once.
        shared = [ray.put(function)]
        task = ray.remote(_call_on_ray).options(num_cpus=1, max_retries=_MAX_RETRIES)
        try:
            for reference in _submit_ahead(lambda item: task.remote(shared, item), items, 2 * count):
                yield ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else None
            if isinstance(cause, ValueError | OSError | ImportError):
                raise cause from None
            raise _ray_error(str(error).strip().rpartition("\n")[2]) from error
        except ray.exceptions.RayError as error:
            raise _ray_error(str(error)) from error


def _call_on_ray(shared: list[Any], item: Any) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _fetch_function(shared[0])(item)


@functools.lru_cache(maxsize=1)
def _fetch_function(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def _ray_error(reason: str) -> WorkerPoolError:
    reason = " ".join(reason.split())[:300]
    return WorkerPoolError(
        f"a Ray worker failed ({reason}); results up to here are kept: run it again to continue"
    )


def require_ray(purpose: str) -> Any:
    """Return the `ray` module.

    Args:
        purpose: What needs Ray, as the subject of the error message "... needs ray".

    Raises:
        MissingExtraError: If Ray is not installed. The message contains the install command.
    """
    with require_extra(purpose, "ray", "ray"):
        import ray
    return ray


@contextlib.contextmanager
def ray_cluster(address: str | None = None, workers: int | None = None) -> Iterator[None]:
    """Connect to a Ray cluster, and disconnect at the end of the context.

    If this process is already connected, the existing connection is used and not closed.

    Args:
        address: Address of the cluster. If None, a local cluster is started.
        workers: Number of CPUs of a local cluster. Defaults to the number of cores.
    """
    ray = require_ray("connecting to a Ray cluster")
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",  # not None, because then Ray would use an address in the environment
            "num_cpus": workers or os.cpu_count(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    else:
        _check_reachable(address)
    # By default, Ray sends usage statistics over the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            # JAX warns about every fork, but Ray's are followed by exec, which is safe.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except (RuntimeError, ValueError, OSError) as error:
        target = "start Ray" if address is None else f"reach the Ray cluster at {address}"
        reason = " ".join(str(error).split())[:300]
        if address is not None and not os.environ.get("RAY_AUTH_TOKEN"):
            reason += (
                "; if the cluster needs a token, as it does by default since Ray 2.59, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        raise WorkerPoolError(f"cannot {target}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    # Ray itself would keep trying for minutes without a message.
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise WorkerPoolError(f"cannot reach the Ray cluster at {address}: {error}") from error
