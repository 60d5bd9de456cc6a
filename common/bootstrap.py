"""What `make run` runs: from the system's Python to a started farm, with the standard library only.

Like the modules it imports it runs with any Python from 3.6 on, so that an old one gets a clear line, no traceback.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import List

from common.install import install, python_of
from common.listening import Refused, listen_as_told
from common.progress import Progress

SUPPORTED = ((3, 11), (3, 12), (3, 13))

EXTRAS = {"gateway", "cpu"}
"""What one host needs."""

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


def check_python() -> None:
    """Raises `Refused` unless this Python can run the farm and make virtual environments."""
    if sys.version_info[:2] not in SUPPORTED:
        names = ["python%d.%d" % version for version in SUPPORTED]
        found = [name for name in names if _works(name)]
        hint = f"make run PYTHON={found[-1]}" if found else f"install one, then make run PYTHON={names[-1]}"
        raise Refused(f"Python {sys.version.split()[0]} does not run tokenfarm, 3.11 to 3.13 do: {hint}")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        package = "python%d.%d-venv" % sys.version_info[:2]
        raise Refused(f"Python's venv module is missing: install {package} (sudo apt install {package}), then make run again") from None


def _works(name: str) -> bool:
    return (
        shutil.which(name) is not None
        and subprocess.run([name, "-V"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


def main(argv: List[str]) -> int:
    """`VENV install EXTRA…` installs; `VENV up OPTION…` takes the port, installs and becomes `tokenfarm up`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    venv, command, rest = Path(argv[0]).absolute(), argv[1], argv[2:]
    progress = Progress(sys.stdout)
    env = dict(os.environ)
    try:
        check_python()
        if command == "install":
            install(venv, EXTRAS | set(rest), progress)
            return 0
        env["FARM_LISTEN_FD"] = str(listen_as_told(env).detach())
        install(venv, EXTRAS, progress)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    python = str(python_of(venv))
    os.execve(python, [python, "-P", "-m", "common.cli", command, *rest], env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
