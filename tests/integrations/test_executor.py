"""`wattline.Executor` against a service, with submitit's own examples."""

from __future__ import annotations

import asyncio
import operator
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path

import pytest

from wattline import Executor
from wattline.errors import ConfigError
from wattline.integrations.executor_parameters import build_settings, normalise_parameters
from wattline.integrations.submitit_errors import FailedJobError, UncompletedJobError
from wattline.service.controller import Controller

with_service = pytest.mark.usefixtures("here")


@pytest.mark.slow
def test_the_example_of_submitits_readme_runs_with_another_executor_line(
    run_script: Callable[..., str],
) -> None:
    pytest.importorskip("submitit")
    readme = str(metadata("submitit").get_payload())
    example = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "def add" in block)
    assert "output == 12" in example
    changed = example.replace("submitit.AutoExecutor(", "wattline.Executor(")
    assert changed != example
    output = run_script(f"import wattline\n{changed}\nprint('result', output)")
    assert "result 12" in output
    assert "slurm_partition: for another cluster" in output


EXAMPLES = """
import asyncio, time
from operator import truediv
import submitit, wattline

def add(a, b):
    return a + b

executor = wattline.Executor(folder="log_test/%j")
executor.update_parameters(timeout_min=4, slurm_array_parallelism=2)
jobs = executor.map_array(add, [1, 2, 3, 4], [10, 20, 30, 40])
print("array", [job.result() for job in jobs])

with executor.batch():
    batch = [executor.submit(add, k, b=1) for k in range(3)]
    try:
        batch[0].job_id
    except AttributeError as error:
        print("inside:", error)
print("batch", [job.result() for job in submitit.helpers.as_completed(batch, poll_frequency=0.05)] != [])

job = executor.submit(truediv, 1, 0)
try:
    job.result()
except submitit.core.utils.FailedJobError as error:
    print("cause", repr(error.__cause__), "ZeroDivisionError" in job.stderr())

print("command", executor.submit(submitit.helpers.CommandFunction(["echo", "hi"])).result().strip())

async def wait_for_all():
    for waiting in asyncio.as_completed([one.awaitable().result() for one in jobs]):
        print("async", await waiting)
asyncio.run(wait_for_all())

executor.update_parameters(tasks_per_node=3)
job = executor.submit(add, 5, 7)
print("tasks", job.results(), job.task(2).result())

class Count(submitit.helpers.Checkpointable):
    done = 0
    def __call__(self, last):
        import os, signal
        while self.done < last:
            self.done += 1
            if self.done == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        return self.done, int(os.environ["WATTLINE_RESTART_COUNT"])
executor.update_parameters(tasks_per_node=1)
print("checkpointed", executor.submit(Count(), 4).result())
"""


@pytest.mark.slow
def test_the_examples_of_submitits_documentation_run(
    run_script: Callable[..., str], service: Controller
) -> None:
    pytest.importorskip("submitit")
    output = run_script(EXAMPLES)
    for line in (
        "array [11, 22, 33, 44]",
        "inside: this call is submitted when executor.batch() ends",
        "batch True",
        "cause ZeroDivisionError('division by zero') True",
        "command hi",
        "async 44",
        "tasks [12, 12, 12] 12",
        "checkpointed (4, 1)",
    ):
        assert line in output
    arrays = {job.sweep for job in service.store.jobs() if job.name == "add" and job.sweep}
    assert len(arrays) == 2  # map_array and batch are one request each


@with_service
@pytest.mark.slow
def test_a_call_has_the_energy_of_its_job_and_can_be_pickled(here: Path) -> None:
    job = pickle.loads(pickle.dumps(Executor(here / "calls").submit(operator.add, 2, 3)))
    assert job.result() == 5
    assert job.energy_j >= 0
    assert job.state == "SUCCEEDED"
    assert job.submission() == (operator.add, (2, 3), {})
    assert job.paths.result_pickle.exists()
    assert job.exception() is None


@with_service
@pytest.mark.slow
def test_one_task_with_several_gpus_is_one_process(here: Path) -> None:
    executor = Executor(here / "calls", gpus_per_node=2, name="alone")
    names = ["RANK", "WATTLINE_GPUS"]
    assert [job.result() for job in executor.map_array(os.getenv, names)] == [None, "2"]


@with_service
@pytest.mark.slow
def test_a_call_without_a_result_names_the_state_of_its_job(here: Path) -> None:
    executor = Executor(here / "calls")
    with pytest.raises(UncompletedJobError, match="is FAILED: Its exit code was 9; there is no result"):
        executor.submit(os._exit, 9).result()
    job = executor.submit(operator.add, 1, 1)
    job.result()
    with pytest.raises(ValueError, match="task_id is 1, expected a number from 0 to 0"):
        job.task(1)


@with_service
@pytest.mark.slow
def test_a_cancelled_call_is_done_and_has_no_result(here: Path) -> None:
    import time

    job = Executor(here / "calls").submit(time.sleep, 600)
    assert not job.done()
    job.cancel()
    with pytest.raises(UncompletedJobError, match="CANCELLED"):
        job.result()
    assert job.done()


@with_service
def test_an_error_that_cannot_be_pickled_comes_back_as_text(here: Path) -> None:
    job = Executor(here / "calls").submit(eval, "(_ for _ in ()).throw(type('Odd', (Exception,), {})('x'))")
    with pytest.raises(FailedJobError, match="Odd: x"):
        asyncio.run(job.awaitable().result())


def test_parameters_of_submitit_become_fields_of_a_job_file() -> None:
    given = normalise_parameters(
        {"timeout_min": 90, "gpus_per_node": "a100:2", "nodes": 2, "tasks_per_node": 2, "mem_gb": 64}
        | {"cpus_per_task": 4, "name": "a$b", "wattline_team": "vision", "stderr_to_stdout": True}
    )
    fields, tasks = build_settings(given)
    assert tasks == 4
    assert fields == {
        "name": "a$$b",
        "team": "vision",
        "resources": {
            "gpus": 4,
            "gpu_type": "a100",
            "time": 5400.0,
            "cpus_per_gpu": 4.0,
            "memory_per_gpu": "32G",
        },
    }


def test_unknown_and_contradicting_parameters_are_refused(here: Path) -> None:
    executor = Executor(here)
    with pytest.raises(ConfigError, match="unknown parameter 'timeoutmin'") as error:
        executor.update_parameters(timeoutmin=3)
    assert error.value.hint == "did you mean timeout_min?"
    with pytest.raises(ConfigError, match="make 3 tasks on 2 GPUs, expected 1 or 2"):
        executor.update_parameters(tasks_per_node=3, gpus_per_node=2)
    with pytest.raises(ConfigError, match="gpus_per_node is 'x', expected a whole number"):
        Executor(here).update_parameters(gpus_per_node="x")
    with pytest.raises(ConfigError, match="gpus and gpus_per_node are both given"):
        Executor(here).update_parameters(gpus_per_node=1, gpus=1)


def test_parameters_of_other_clusters_are_announced(here: Path) -> None:
    with pytest.warns(UserWarning, match="slurm_qos: for another cluster"):
        Executor(here).update_parameters(slurm_qos="high")


def test_a_batch_that_fails_submits_nothing(here: Path, service: Controller) -> None:
    executor = Executor(here)
    before = len(service.store.jobs())
    jobs = []

    def fail_in_a_batch() -> None:
        with executor.batch():
            jobs.append(executor.submit(operator.add, 1, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_batch()
    assert len(service.store.jobs()) == before
    with pytest.raises(AttributeError, match="was not submitted"):
        _ = jobs[0].job_id
    with pytest.raises(ConfigError, match="inside another"), executor.batch(True), executor.batch():
        pass
    with pytest.warns(RuntimeWarning, match="no calls"):
        assert executor.map_array(operator.add, [], []) == []


def test_neither_wattline_nor_its_executor_imports_large_packages() -> None:
    code = (
        "import sys, wattline\n"
        "assert 'cloudpickle' not in sys.modules\n"
        "wattline.Executor\n"  # submitit, where it is installed, imports cloudpickle
        "heavy = {'torch', 'pydantic', 'transformers', 'lightning', 'hydra', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
