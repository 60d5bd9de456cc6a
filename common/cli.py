"""The console script `tokenfarm`. It imports neither torch nor a broker client, so that `--help` is quick anywhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from common.config import ONE_HOST, Settings, version
from common.errors import StartError
from common.listening import Refused
from common.logs import start_logs

log = logging.getLogger("common.cli")

USAGE = """\
usage: tokenfarm COMMAND [options]

  up       broker, gateway and workers on this host (also: serve)
  gateway  one gateway, for the broker at REDIS_URL
  worker   one worker, for the broker at REDIS_URL
  request  what became of a request: tokenfarm request RID
  dead     the requests that were given up
  jobs     the worker that fetches and converts models, for the database at FARM_JOBS_URL
           jobs prefetch | jobs convert: have it done for MODEL_ID, and wait

tokenfarm COMMAND --help lists the options; each has an environment variable."""


def main() -> NoReturn:
    """Runs one command and exits with its status."""
    try:
        sys.exit(run(sys.argv[1:]))
    except (StartError, Refused) as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "code", 2))
    except KeyboardInterrupt:
        sys.exit(130)


def run(argv: Sequence[str]) -> int:
    """The exit status of a command line; raises `StartError` and `Refused`."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(USAGE)
    elif name in ("-V", "--version"):
        print(f"tokenfarm {version()}")
    elif name not in COMMANDS:
        raise StartError(f"tokenfarm {name} is no command, there are: {', '.join(COMMANDS)}")
    else:
        return COMMANDS[name](argv[1:])
    return 0


def _one_host(argv: Sequence[str]) -> int:
    settings = _begin(argv, "tokenfarm up", ONE_HOST)
    for note in settings.notes:
        log.warning(note)
    from common.local import up

    return up(settings, argv)


def _gateway(argv: Sequence[str]) -> int:
    _begin(argv, "tokenfarm gateway")
    return _become("gateway", argv)


def _worker(argv: Sequence[str]) -> int:
    _begin(argv, "tokenfarm worker")
    return _become("workers", argv)


def _jobs(argv: Sequence[str]) -> int:
    _begin([word for word in argv if word in ("-h", "--help")], "tokenfarm jobs")
    return _become("workers.jobs", argv)


def _request(argv: Sequence[str]) -> int:
    settings = _begin(argv[1:], "tokenfarm request")
    from common.operators import show_request

    if not argv:
        raise StartError("Which request? tokenfarm request RID; gateways log the rid of each")
    return show_request(settings, argv[0])


def _dead(argv: Sequence[str]) -> int:
    settings = _begin(argv, "tokenfarm dead")
    from common.operators import show_dead

    return show_dead(settings)


def _begin(argv: Sequence[str], program: str, defaults: Mapping[str, object] | None = None) -> Settings:
    """Refuses wrong settings before anything slow."""
    settings = Settings.from_env(os.environ, argv, defaults=defaults, program=program)
    start_logs(settings)
    if settings.env:
        print(settings.describe())
    return settings


def _become(package: str, argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", package, *argv])


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": _one_host,
    "serve": _one_host,
    "gateway": _gateway,
    "worker": _worker,
    "request": _request,
    "dead": _dead,
    "jobs": _jobs,
}

if __name__ == "__main__":
    main()
