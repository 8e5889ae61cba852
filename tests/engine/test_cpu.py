# SPDX-License-Identifier: Apache-2.0
"""Models on the CPU, captured in processes that have no driver: every family has what forward hooks see, in bits."""
import numpy as np
import pytest

import harness
import torch_env
from adapter_runs import HERE, MARKS
from harness import DMI_DUMP, DMI_RUN, ROOT
from test_attach import FAMILIES

pytestmark = MARKS
HEAD = 8  # elements, in attach_models.py
SAID = "dmi: the model's tensors are on the CPU: taps read them there (kernels and graphs are what a GPU adds)"


def environment():
    """Without a driver, and without one in the library path."""
    python, env = torch_env.python_with_torch()
    return python, dict(env, PYTHONPATH=f"{ROOT / 'python'}:{HERE}")


def tensors(path):
    """{key: (dtype, shape, bytes)} of a file of safetensors, of any dtype."""
    import safetensors  # pylint: disable=import-outside-toplevel
    return {name: (told["dtype"], told["shape"], bytes(told["data"])) for name, told in safetensors.deserialize(path.read_bytes())}


def captured(check, folder):
    """{key: (dtype, shape, bytes)} of all runs, each of which is complete and accounted for; a run a process."""
    found = {}
    for number, run in enumerate(harness.runs_of(folder / "RUN")):
        harness.run([DMI_DUMP, "verify", run])
        counters = harness.Counters(run)
        check(counters.state == counters.CLOSED and all(counters.captured[i] == expected for i, expected in enumerate(counters.expected)) and
              sum(counters.launches), "all that was tapped is captured", (counters.expected, counters.dropped))
        harness.run([DMI_DUMP, "export", "--format", "safetensors", run, "-o", folder / f"{number}.st"])
        found |= tensors(folder / f"{number}.st")
    return found


def capture(check, folder, what, families):
    python, env = environment()
    command = [DMI_RUN, "--preset", "all", "--out", folder / "RUN", "--", python, HERE / "cpu_client.py", folder, what, *families]
    done = harness.run(command, env=env, timeout=1800)
    check("False" not in done.stdout, "the models compute what they compute without taps", done.stdout)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("dmi: armed: ")]
    check(lines == [SAID], "one line says where the tensors are, and nothing else is said", lines)
    check(len(harness.runs_of(folder / "RUN")) == 1 + len(families), "each process has a run of its own, the first one, too", done.stderr)
    return captured(check, folder)


def is_same(found, wanted):
    """In bits; of partial rotation the rotated part."""
    if found is None or found[0] != wanted[0] or len(found[2]) == len(wanted[2]):
        return found == wanted
    rows, width = wanted[1]
    ours = np.frombuffer(found[2], np.uint8).reshape(rows, -1, HEAD * len(wanted[2]) // (rows * width))
    theirs = np.frombuffer(wanted[2], np.uint8).reshape(rows, ours.shape[1], -1)
    return np.array_equal(ours[:, :, :theirs.shape[2]], theirs)


@pytest.mark.parametrize("families", [("llama",), pytest.param(FAMILIES, marks=pytest.mark.long)], ids=["llama", "families"])
def test_as_forward_hooks(check, tmp_path, families):
    """In bits, in three types; what a batch leaves is its own, though the next one comes at once."""
    found = capture(check, tmp_path, "eager", families)
    wanted = {f"{path.stem}/{key}": value for path in tmp_path.glob("*.safetensors") for key, value in tensors(path).items()}
    check(len(wanted) >= 100 * len(families), "there is something to compare", len(wanted))
    differs = sorted(key for key, value in wanted.items() if not is_same(found.get(key.replace(".None", "")), value))
    check(not differs, "each tap has the bits that hooks see", differs[:8])
