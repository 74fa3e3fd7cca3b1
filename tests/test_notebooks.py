"Every notebook runs from top to bottom; each is one test, all in this process. `TST_FLAGS='slow gpu'` runs flagged cells too."
import os
import signal
from pathlib import Path

import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import test_nb as run_nb  # pytest would collect the name `test_nb`

cfg = get_config(Path(__file__).parent)
notebooks = sorted(nbglob(cfg.nbs_path, as_path=True))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    "What a notebook or its runner changed is set back for the next one: environment, import path, Ctrl-C."
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    monkeypatch.syspath_prepend(str(cfg.config_path))
    yield
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, handler)


def test_notebooks_are_found():
    assert {p.name for p in notebooks} >= {'index.ipynb', '00_settings.ipynb', '90_cli.ipynb'}


@pytest.mark.parametrize('path', notebooks, ids=lambda p: str(p.relative_to(cfg.nbs_path)))
def test_notebook(path):
    ok, _ = run_nb(path.absolute(), skip_flags=cfg.tst_flags.split(), force_flags=os.environ.get('TST_FLAGS', '').split(),
                   basepath=cfg.config_path, cell_timeout=cfg.cell_timeout)
    assert ok, f'{path} failed: its traceback is in the captured stderr'
