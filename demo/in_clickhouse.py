# SPDX-License-Identifier: Apache-2.0
"""The demo's run in a ClickHouse server: in_clickhouse.py RUN FOLDER

Starts the server that is installed, or that `./bootstrap test` has unpacked, on loopback and in FOLDER, has dmi-replay send the run
to it, and asks it one thing. Exit status 3 where there is no server.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "unit"))
from clickhouse_server import PASSWORD, PROGRAM, Server  # noqa: E402

QUERY = """SELECT layer, elements, round(norm, 1) AS norm, round(greatest, 1) AS greatest, not_finite
FROM demo.dmi_records_norms WHERE site = 'resid_pre' AND layer % 5 = 0 ORDER BY layer"""


def main():
    run, folder = sys.argv[1:]
    if not PROGRAM:
        sys.exit(3)
    server = Server(pathlib.Path(folder).resolve()).start()
    try:
        to = f"clickhouse://127.0.0.1:{server.port}/demo"
        print(f"+ dmi-replay {run} --to {to}", flush=True)
        subprocess.run(["dmi-replay", run, "--to", to], check=True, env=os.environ | {"DMI_CLICKHOUSE_PASSWORD": PASSWORD})
        print(f"\n{QUERY}\n")
        print("\n".join("\t".join(row) for row in server.ask(QUERY + " FORMAT PrettyCompactNoEscapes")))
    finally:
        server.kill()


if __name__ == "__main__":
    main()
