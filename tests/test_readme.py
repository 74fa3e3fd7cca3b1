"README.md is made from the front-page notebook, and what it tells a reader to type works."
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT/'README.md').read_text(encoding='utf-8')
COMMANDS = [line for block in re.findall(r'^```bash\n(.*?)^```', README, re.M | re.S) for line in block.splitlines()]
BIN = Path(sys.executable).parent


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT/'scripts'/f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shell(*command: str) -> subprocess.CompletedProcess:
    env = os.environ | {'PATH': f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def test_the_main_commands_are_there():
    assert {'make demo', 'make test', 'medagent ask "What should be monitored during treatment with lithium?"'} <= set(COMMANDS)


@pytest.mark.parametrize('command', COMMANDS)
def test_command(command, tmp_path):
    words = shlex.split(command)
    if words[0] == 'make':                              # long; the smoke study and this very run are their tests
        done = shell('make', '--dry-run', *words[1:])
        assert done.returncode == 0 and '.venv/bin' in done.stdout, done.stderr
    elif words[:2] == ['medagent', 'audit']:
        done = shell(*words)
        assert done.returncode == 0 and 'claims that cite nothing: 1' in done.stdout, done.stderr
    elif words[:3] == ['medagent', 'index', 'build']:
        done = shell(*[w.replace('outputs/', f'{tmp_path}/') for w in words])
        assert done.returncode == 0 and 'passages' in done.stdout, done.stderr
    elif words[:3] == ['medagent', 'index', 'search']:   # of what the command before it has built
        build = next(c for c in COMMANDS if c.startswith('medagent index build'))
        assert shell(*[w.replace('outputs/', f'{tmp_path}/') for w in shlex.split(build)]).returncode == 0
        done = shell(*[w.replace('outputs/', f'{tmp_path}/') for w in words])
        assert done.returncode == 0 and 'serum level one week after' in done.stdout, done.stdout + done.stderr
    elif words[0] == 'medagent':                        # needs a trained policy: the command and its arguments must exist
        done = shell(*words[:2], '--help')
        assert done.returncode == 0 and all(o in done.stdout for o in words if o.startswith('--')), done.stderr
    elif words[:2] == ['git', 'config']: assert (ROOT/'nbs'/words[-1]).resolve() == ROOT/'.gitconfig'
    else: assert command == '. .venv/bin/activate'


def test_paths_exist():
    paths = set(re.findall(r'`((?:nbs|data|medagent|scripts)/[\w./-]*)`', README))
    assert len(paths) > 15 and [p for p in sorted(paths) if not (ROOT/p).exists()] == []


def test_table_is_filled_from_its_file(tmp_path):
    readme = script('readme')
    text = 'a\n<!-- begin t.md -->\nnone yet\n<!-- end -->\nb'
    assert readme.fill(text, tmp_path) == text
    (tmp_path/'t.md').write_text('| x |\n')
    assert readme.fill(text, tmp_path) == 'a\n<!-- begin t.md -->\n\n| x |\n\n<!-- end -->\nb'


def test_cells_become_markdown(tmp_path):
    cells = [dict(cell_type='markdown', source='# T'), dict(cell_type='code', source='#| hide\nx', outputs=[]), dict(cell_type='raw', source='---'),
             dict(cell_type='code', source=['#| export\n', 'f()'], outputs=[dict(text=['1\n']), dict(data={'text/plain': '2'}), dict(data={'image/png': 'x'})])]
    text = script('readme').readme(dict(cells=cells), tmp_path)
    assert text.split('-->\n\n')[1] == '# T\n\n```python\nf()\n```\n\n```\n1\n```\n\n```\n2\n```\n'


def test_stale_files_are_found(tmp_path):
    check = script('check_sync')
    (tmp_path/'nbs').mkdir(); (tmp_path/'medagent').mkdir()
    for name in ('pyproject.toml', 'settings.ini', 'nbs/index.ipynb', 'nbs/90_cli.ipynb', 'medagent/__init__.py', 'medagent/cli.py'): shutil.copy(ROOT/name, tmp_path/name)
    shutil.copytree(ROOT/'scripts', tmp_path/'scripts')
    (tmp_path/'README.md').write_text('old')
    (tmp_path/'medagent'/'cli.py').write_text('x = 1\n')
    before = check.contents(tmp_path)
    assert check.stale_files(tmp_path) == ['README.md', 'medagent/_modidx.py', 'medagent/cli.py']
    assert check.contents(tmp_path) == before            # looking changes nothing
