"The command as a person uses it: messages, exit codes, studies that run, fail, are interrupted and are skipped."
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medagent import cli, parse
from medagent.trajectory import write_jsonl, zstd

MEDAGENT = Path(sys.executable).parent/'medagent'
KERNEL = dict(kernelspec=dict(name='python3', display_name='python3', language='python'))
STUDY = {
    'parameters': "run = 'tiny/default'  # folder under outputs\nseed: int = 1  # of the policy\nmode = 'good'",
    'import': 'import time\nfrom medagent.settings import MedAgentError, run_dir, write_atomic',
    'body': "print('seed is', seed, flush=True)\nif mode == 'bad': raise MedAgentError('no facts file')\nif mode == 'slow': time.sleep(60)",
    'end': "if mode != 'silent': write_atomic(run_dir(run)/'metrics.json', str(seed))"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    "A project with one small study."
    (tmp_path/'settings.ini').write_text('[DEFAULT]\nlib_name = medagent\ndata_path = data\noutputs_path = outputs\nseed = 42\nthreads = 1\ndevice = auto\n')
    cells = [dict(cell_type='code', id=k, source=v, metadata=dict(tags=[k]), outputs=[], execution_count=None) for k, v in STUDY.items()]
    (tmp_path/'nbs'/'studies').mkdir(parents=True)
    (tmp_path/'nbs'/'studies'/'tiny.ipynb').write_text(json.dumps(dict(cells=cells, metadata=KERNEL, nbformat=4, nbformat_minor=5)))
    for key in [k for k in os.environ if k.startswith('MEDAGENT_')]: monkeypatch.delenv(key)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def medagent(*words: str): return CliRunner().invoke(cli.app, list(words))


def test_study_runs_once_then_is_skipped(project, capfd):
    first = medagent('run', 'tiny', '-p', 'seed', '7')
    assert first.exit_code == 0 and 'outputs/tiny/seed=7' in first.output, first.output
    assert 'seed is 7' in first.output                                     # the notebook's own output is seen while it runs
    folder = project/'outputs'/'tiny'/'seed=7'
    assert (folder/'metrics.json').read_text() == '7'
    made = (folder/'run.ipynb').stat().st_mtime_ns
    assert medagent('run', 'tiny', '-p', 'seed=7').exit_code == 0 and (folder/'run.ipynb').stat().st_mtime_ns == made
    (folder/'metrics.json').write_text('old')
    assert medagent('run', 'tiny', '-p', 'seed', '7', '--force').exit_code == 0 and (folder/'metrics.json').read_text() == '7'


def test_failing_study_keeps_its_notebook(project):
    done = medagent('run', 'tiny', '-p', 'mode', 'bad')
    assert done.exit_code == 1 and 'MedAgentError: no facts file' in done.stderr and 'Traceback' not in done.stderr
    copy = json.loads((project/'outputs'/'tiny'/'mode=bad'/'run.ipynb').read_text())
    assert any('no facts file' in json.dumps(c.get('outputs', '')) for c in copy['cells'])
    assert not (project/'outputs'/'tiny'/'mode=bad'/'metrics.json').exists()


def test_study_without_metrics_is_not_done(project):
    done = medagent('run', 'tiny', '-p', 'mode', 'silent')
    assert done.exit_code == 1 and 'does not count as done' in done.stderr


@pytest.mark.parametrize('words, message', [
    (['tini'], "Did you mean 'tiny'?"), (['../studies/tiny'], 'no study'), (['tiny', '-p', 'sede', '1'], "Did you mean 'seed'?"),
    (['tiny', '-p', 'seed', 'one'], "'one' does not fit"), (['tiny', '-p', 'seed'], 'a value is missing'),
    (['tiny', '-p', 'seed', '1', '-p', 'seed', '2'], 'given twice'), (['tiny', '-p', 'run', '../../x'], 'not a folder inside')])
def test_bad_requests_start_no_kernel(project, words, message):
    done = medagent('run', *words)
    assert done.exit_code == 2 and message in done.stderr and not list(project.rglob('run.ipynb'))


def test_interrupt_is_a_message(project):
    process = subprocess.Popen([MEDAGENT, 'run', 'tiny', '-p', 'mode', 'slow'], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a test run started in the background ignores Ctrl-C, and its children would too
    try:
        assert process.stdout.readline() == 'seed is 1\n'
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally: process.kill()
    assert process.returncode == 130 and 'run the same command again' in err and 'Traceback' not in err
    deadline = time.monotonic() + 10
    while (alive := kernels_in(project)) and time.monotonic() < deadline: time.sleep(0.1)
    assert not alive                                                        # the notebook's process is gone too


def kernels_in(folder: Path) -> list[str]:
    "Processes whose working directory is `folder`, as Linux lists them."
    found = []
    for link in Path('/proc').glob('[0-9]*/cwd'):
        try: where = link.resolve()
        except OSError: continue
        if where == folder.resolve() and int(link.parent.name) != os.getpid(): found.append(link.parent.name)
    return found


def test_audit_reads_our_lines_and_adds_up(tmp_path):
    texts = ['[Action] kg_query("x")\n[Observation #1] A fact.\n[Evidence] A fact holds [#1]. Lithium harms.\n[Answer] a', '[Evidence] B holds [#4].']
    path = write_jsonl([parse(t, id=f'q{i}') for i, t in enumerate(texts)], tmp_path/'t.jsonl')
    done = medagent('audit', str(path))
    assert done.exit_code == 0 and 'q0: answered, 1 calls' in done.output and 'q1: no_answer, 0 calls' in done.output
    totals = done.output.split('totals\n')[1].splitlines()
    assert {'  trajectories: 2', '  claims: 3', '  claims that cite nothing: 1', '  claims that cite a missing observation: 1', '  defect: missing-answer: 1'} <= set(totals)


def test_hostile_text_cannot_write_to_the_terminal(tmp_path):
    bad = 'x\x1b]0;owned\x07\x9b31m\u202e\r\n  answer: forged'
    (tmp_path/'t.txt').write_text(f'[Action] kg_query("x")\n[Observation #1] {bad}\n[Evidence] {bad} [#1].\n[Answer] {bad}', encoding='utf-8')
    out = medagent('audit', str(tmp_path/'t.txt')).output
    assert not [c for c in out if c != '\n' and not c.isprintable()]
    assert [line for line in out.splitlines() if line.startswith('  answer:')] == ['  answer: x]0;owned31m']


@pytest.mark.parametrize('name, content, message', [
    ('missing.txt', None, 'cannot be read'), ('empty.txt', b'', 'no response'), ('bytes.txt', b'\xff\xfe\x00', 'UTF-8'), ('bad.jsonl', b'{}\n', 'bad.jsonl:1')])
def test_unreadable_traces_are_a_message(tmp_path, name, content, message):
    if content is not None: (tmp_path/name).write_bytes(content)
    done = subprocess.run([MEDAGENT, 'audit', tmp_path/name], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr and 'Traceback' not in done.stderr


CHAT = [dict(role='user', content='Q?'), dict(role='assistant', content='Look.', tool_calls=[dict(id='1', function=dict(name='search', arguments='{"query": "lithium"}'))]), dict(role='tool', tool_call_id='1', content='A fact.'), dict(role='assistant', content='A fact holds [1]. Lithium harms.')]


@pytest.mark.parametrize('name, data', [('t.txt', '<search>q</search><information>Doc 1(t) x</information><answer>B</answer>'), ('t.jsonl', json.dumps(dict(messages=CHAT))), ('T.JSONL', json.dumps(dict(messages=CHAT))), ('t.jsonl.gz', json.dumps(dict(messages=CHAT))),
    ('t.jsonl.zst', json.dumps(dict(messages=CHAT))), ('t.json', json.dumps(CHAT)), ('bom.jsonl', '\ufeff' + json.dumps(dict(messages=CHAT))), ('lines.json', '\n'.join([json.dumps(dict(messages=CHAT))]*2))])
def test_audit_reads_the_traces_of_others(tmp_path, name, data):
    raw = data.encode()
    (tmp_path/name).write_bytes(gzip.compress(raw) if name.endswith('.gz') else zstd.compress(raw) if name.endswith('.zst') else raw)
    done = medagent('audit', str(tmp_path/name))
    assert done.exit_code == 0, done.output
    assert 'action: search(' in done.output and 'observation #1:' in done.output
    if name != 't.txt': assert 'claims in the answer:' in done.output and '1. A fact holds. [#1]\n' in done.output and 'Lithium harms.  <- cites nothing' in done.output


def test_ids_and_defects_of_a_file_cannot_write_report_lines(tmp_path):
    row = json.loads((write_jsonl([parse('[Answer] B', id='q')], tmp_path/'ours.jsonl')).read_text())
    rows = [dict(response='<answer>B</answer>', id='q\n\ntotals\n  claims: 0'), row | dict(defects=['none\n\ntotals\n  claims that cite nothing: 0'])]
    (tmp_path/'t.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    out = medagent('audit', str(tmp_path/'t.jsonl')).output
    assert out.splitlines().count('totals') == 1 and '  claims that cite nothing: 0' not in out.splitlines()


def test_bad_records_are_named_and_the_rest_is_audited(tmp_path):
    (tmp_path/'t.jsonl').write_text('{"response": "<answer>B</answer>"}\nnot json\n{"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]}\n')
    done = medagent('audit', str(tmp_path/'t.jsonl'))
    assert done.exit_code == 0 and 'trajectories: 2' in done.output and 'records that could not be read: 1' in done.output and 't.jsonl:2:' in done.stderr


def test_help_is_fast_and_lists_the_commands():
    code = "import sys\nfrom medagent.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass\nassert not {'torch', 'pandas', 'papermill'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0 and all(f'  {name} ' in done.stdout for name in ('demo', 'run', 'audit', 'ask')), done.stderr
