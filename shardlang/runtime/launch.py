"""Starts the ranks of a run on this machine through torch's own elastic launcher, and tells how they ended.

Each rank is a fresh interpreter, ``python -m MODULE ARGUMENTS``, with the working directory first on its import path.
A rank that fails leaves an account of its error in the run's directory (``account``) before it ends; the launcher
picks, among the ranks that failed, the one that failed first for a reason of its own: a peer that only lost its
connection to it is never blamed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_HAS_GRACE = "shutdown_timeout" in LaunchConfig.__dataclass_fields__
"""Older releases of torch give ranks their own time to end."""

GRACE = 2
"""Seconds that ranks get to end by themselves after SIGTERM, before SIGKILL."""
TAIL = 12
"""Lines of a rank's standard error that are shown where it left no account."""
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL communicator was aborted")
"""What torch's backends say in a rank whose peer is gone."""


@frozen
class RankFailure(Exception):
    """How a rank ended that should not have. ``rank`` is ``None`` for the one-process reference.

    ``summary`` says it in a line; ``text`` is the traceback, or the end of its standard error; ``rendered`` holds the
    diagnostics where the rank raised some; ``lost_peer`` marks one that failed only because another was gone.
    """

    rank: int | None
    summary: str
    text: str = ""
    rendered: str = ""
    lost_peer: bool = False
    time: float = 0.0


class Interrupted(Exception):
    """The run was ended by a signal; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def launch(module: str, arguments: tuple[str, ...], *, nproc: int, directory: Path) -> None:
    """Runs ``nproc`` ranks to their end.

    Raises ``RankFailure`` for the rank that failed first for a reason of its own, and ``Interrupted`` on SIGINT and
    SIGTERM; no process of the run is alive then.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what it has to say, the diagnostic says
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logs = directory / "logs"
    grace: dict[str, Any] = {"shutdown_timeout": GRACE} if _HAS_GRACE else {}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
        **grace,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        raise first_cause(error.failures, directory) from None
    except SignalException as error:
        raise Interrupted(int(error.sigval)) from None


def first_cause(failures: Mapping[int, ProcessFailure], directory: Path) -> RankFailure:
    """Of several failed ranks, the one to blame."""
    accounts = [read_account(directory, rank, failure.exitcode) for rank, failure in failures.items()]
    own = [a for a in accounts if a is not None]
    return min(own, key=lambda a: (a.lost_peer, a.time)) if own else RankFailure(None, "the ranks ended without a word")


def read_account(directory: Path, rank: int | None, exitcode: int) -> RankFailure | None:
    """What a failed process left behind; ``None`` for one that the launcher itself ended."""
    path = account_path(directory, rank)
    if path.exists():
        return RankFailure(**json.loads(path.read_text()))
    if exitcode == -signal.SIGTERM:
        return None
    if exitcode < 0:
        summary = f"was killed by {signal.Signals(-exitcode).name}"
    else:
        summary = f"ended with exit code {exitcode}"
    logs = sorted(directory.glob(f"logs/**/{rank}/stderr.log" if rank is not None else "reference.log"))
    lines = logs[-1].read_text(errors="replace").splitlines() if logs else []
    return RankFailure(rank, summary, "\n".join(lines[-TAIL:]), time=time.time())


def account_path(directory: Path, rank: int | None) -> Path:
    return directory / ("reference.error.json" if rank is None else f"rank{rank}.error.json")


def account(directory: Path, rank: int | None, error: BaseException) -> None:
    """Writes a failing process's own account, whole or not at all."""
    from shardlang.diagnostics import ShardlangError

    message = str(error).strip() or "no message"
    record: dict[str, Any] = {
        "rank": rank,
        "summary": f"raised {type(error).__name__}: {message.splitlines()[0]}",
        "text": "".join(traceback.format_exception(error)),
        "rendered": str(error) if isinstance(error, ShardlangError) else "",
        "lost_peer": any(sign in message for sign in LOST_PEER),
        "time": time.time(),
    }
    path = account_path(directory, rank)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record))
    partial.replace(path)


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Companion:
    """A process beside the ranks (the one-device reference), ended with them."""

    def __init__(self, module: str, arguments: tuple[str, ...], directory: Path) -> None:
        self.directory = directory
        with (directory / "reference.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Waits for its end. Raises ``RankFailure`` where it failed, ``Interrupted`` on SIGINT and SIGTERM."""
        try:
            code = self.process.wait()
        except SignalException as error:  # the launcher's handlers stay when it is done
            raise Interrupted(int(error.sigval)) from None
        except KeyboardInterrupt:
            raise Interrupted(int(signal.SIGINT)) from None
        if code:
            raise read_account(self.directory, None, code) or RankFailure(None, "was ended")

    def close(self) -> None:
        """Ends it where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
