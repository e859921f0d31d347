"""Runs in Jupyter: cells define functions, run them, edit them, and run them again."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_trains_edits_and_trains_again() -> None:
    cells = [
        "from headway import train\nfrom headway.train.torch import TorchTrainer, prepare_model\nimport torch",
        "SCALE = 2\n"
        "def train_func(config):\n"
        "    model = prepare_model(torch.nn.Linear(2, 2))\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    print('in the worker')\n"
        "    train.report({'value': config['x'] * SCALE})",
        "trainer = lambda: TorchTrainer(train_func, train_loop_config={'x': 3},\n"
        "    scaling_config=train.ScalingConfig(num_workers=2))\n"
        "trainer().fit().metrics",
        "SCALE = 10",
        "trainer().fit().metrics",
        "result = train.DataParallelTrainer(lambda: 1 / 0)\n"
        "try:\n"
        "    result.fit()\n"
        "except train.TrainingFailedError as error:\n"
        "    print(type(error.__cause__).__name__)",
        "list(run.metrics['value'] for run in trainer().start().reports())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = ["".join(_text(output) for output in cell.outputs) for cell in notebook.cells]
    assert "{'value': 6}" in outputs[2]
    assert "[r1] in the worker" in outputs[2]
    assert "{'value': 30}" in outputs[4]
    assert "ZeroDivisionError" in outputs[5]
    assert "[30]" in outputs[6]


def _text(output: dict[str, object]) -> str:
    data = output.get("data", {})
    assert isinstance(data, dict)
    return str(output.get("text", "")) + str(data.get("text/plain", ""))
