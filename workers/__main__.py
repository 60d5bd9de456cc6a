"""`python -m workers` = `tokenfarm worker`: one supervised worker."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from common.config import Settings
from common.errors import StartError
from common.logs import start_logs
from workers.supervisor import supervise

log = logging.getLogger("workers")


def main() -> int:
    try:
        settings = Settings.from_env(os.environ, sys.argv[1:], program="tokenfarm worker")
        if settings.selftest:
            return _selftest(settings)
        if not settings.redis_url:
            raise StartError("REDIS_URL is not set; a worker needs the address of the broker, for example redis://127.0.0.1:6379")
    except StartError as error:
        print(error, file=sys.stderr)
        return error.code
    start_logs(settings)
    for note in settings.notes:
        log.warning("%s", note)
    return asyncio.run(supervise(settings, sys.argv[1:]))


def _selftest(settings: Settings) -> int:
    from workers.selftest import main as selftest  # imports torch, which a supervisor never does

    return selftest(settings)


if __name__ == "__main__":
    sys.exit(main())
