"""gepa under flash in a cell: the button that interrupts the kernel, pressed once and twice."""

import ast
from queue import Empty

import pytest
from jupyter_client.manager import start_new_kernel

PATIENCE = 150.0  # seconds without a word, after which the test fails
SETUP = """
import sys
sys.path.insert(0, {helpers!r})
import gepa
from gepa_task import ONE, Reflection, Words
from flashevolve_plugins import Flash

class Telling(Words):
    def working(self, batch, candidate):
        import time
        time.sleep(0.004)  # the work
        if len(self.batches) >= HANG and batch[0] >= FROM:
            print("hanging", flush=True)
            time.sleep(1e6)

class Told:
    def on_iteration_end(self, event):
        print("iteration", event["iteration"], flush=True)

class Silent:
    def log(self, message):
        pass

def optimize(grace):
    flash = Flash(progress=False, max_concurrency=4, grace=grace)
    return gepa.optimize(
        seed_candidate=ONE, trainset=list(range(12)), valset=list(range(100, 110)), adapter=Telling(), logger=Silent(),
        reflection_lm=Reflection(), callbacks=[Told()], max_metric_calls=100_000, executor=flash,
    )
"""


class Notebook:
    """Cells run one after the other in one kernel."""

    def __init__(self, helpers):
        self.manager, self.client = start_new_kernel(startup_timeout=PATIENCE)
        self.run(SETUP.format(helpers=helpers))

    def run(self, code, *, interrupt_at=()):
        """Run a cell; press the button whenever it says the next of these. Gives what it said, and its error's name."""
        asked, said, error, marks = self.client.execute(code), "", None, list(interrupt_at)
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=PATIENCE)
            except Empty:
                pytest.fail(f"The kernel has said nothing for {PATIENCE} seconds, but: {said}")
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                said += content["text"]
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said, error
            if marks and marks[0] in said:
                marks.pop(0)
                self.manager.interrupt_kernel()


@pytest.fixture
def notebook(source_root):
    opened = Notebook(str(source_root / "tests" / "helpers"))
    yield opened
    opened.client.stop_channels()
    opened.manager.shutdown_kernel(now=True)


def test_one_interrupt_returns_the_best_so_far_and_the_next_cell_has_it(notebook):
    said, error = notebook.run("HANG = 10**9; FROM = 0; result = optimize(10.0)", interrupt_at=["iteration 5"])
    assert error is None, said
    assert said.count("Stopping (Ctrl-C)") == 1
    told, error = notebook.run(
        "print([sum(result.best_candidate == each for each in result.candidates), len(result.candidates)])"
    )
    assert error is None
    assert ast.literal_eval(told)[0] == 1


def test_one_interrupt_while_every_metric_hangs_returns_after_the_grace_period(notebook):
    said, error = notebook.run("HANG = 60; FROM = 0; result = optimize(0.3)", interrupt_at=["hanging"])
    assert error is None, said
    told, _ = notebook.run("print(result.total_metric_calls)")
    assert 10 <= int(told) <= 60


def test_two_interrupts_end_the_cell_at_once_and_the_kernel_goes_on(notebook):
    cell = "HANG = 60; FROM = 100; result = optimize(1e6)"  # a validation hangs, which the grace period waits for
    said, error = notebook.run(cell, interrupt_at=["hanging", "Stopping (Ctrl-C)"])
    assert error == "KeyboardInterrupt", said
    assert notebook.run("import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)") == (
        "True\n",
        None,
    )
