"The repository itself: layers, generated files, public names, nothing that only works on one machine."
import ast
import configparser
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(p for p in (ROOT/'medagent').rglob('*.py') if not p.name.startswith('_'))
NOTEBOOKS = sorted((ROOT/'nbs').rglob('*.ipynb'))
ROOMS = ['settings', 'trajectory', 'claims', 'traces', 'retrieval', 'agent', 'verifier', 'reward', 'training', 'evaluation', 'baselines',
         'report', 'starter', 'cli']     # data flows downwards
LEAVES = {'medagent.evaluation.answers', 'medagent.evaluation.benchmarks'}   # import settings only, so these rooms may use them
LEAF_USERS = {'agent', 'reward', 'training'}


def imported(path: Path, root: Path = ROOT) -> set[str]:
    "The medagent modules that a file imports anywhere, functions included, by absolute dotted name."
    package = ('medagent', *path.relative_to(root/'medagent').parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join([*package[:len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else node.module
            names = {f'{base}.{a.name}' for a in node.names}
            found |= {n if (root/Path(*n.split('.'))).with_suffix('.py').exists() or (root/Path(*n.split('.'))).is_dir() else base for n in names}
    return {m for m in found if m.startswith('medagent.')}


def room(module: str) -> str: return module.split('.')[1]


def name_of(path: Path, root: Path = ROOT) -> str: return '.'.join(path.relative_to(root).with_suffix('').parts)


def layer_faults(path: Path, root: Path = ROOT) -> list[str]:
    "Imports of a module that its place does not allow."
    name, mine = name_of(path, root), room(name_of(path, root))
    def allowed(other: str) -> bool:
        if name in LEAVES: return room(other) == 'settings'
        if other in LEAVES and mine in LEAF_USERS: return True
        return ROOMS.index(room(other)) < ROOMS.index(mine) or room(other) == mine
    return [f'{name} imports {other}' for other in sorted(imported(path, root)) if not allowed(other)]


def test_every_module_has_a_room():
    assert len(MODULES) > 15 and {room(name_of(p)) for p in MODULES} <= set(ROOMS)


@pytest.mark.parametrize('path', MODULES, ids=name_of)
def test_imports_point_upwards(path):
    assert not layer_faults(path)


@pytest.mark.parametrize('place, line, faults', [
    ('verifier/nli.py', 'from ..starter.world import World', 1), ('verifier/nli.py', 'from ..starter import world', 1),
    ('verifier/nli.py', 'def f():\n    import medagent.starter.world', 1), ('reward/terms.py', 'from ..evaluation.benchmarks import Item', 0),
    ('verifier/nli.py', 'from ..evaluation.benchmarks import Item', 1), ('reward/terms.py', 'from ..evaluation import judges', 1),
    ('evaluation/benchmarks.py', 'from ..trajectory import parse', 1), ('evaluation/judges.py', 'from .benchmarks import Item', 0),
    ('report/audit.py', 'from ..starter.world import World\nfrom medagent.settings import run_dir', 1), ('starter/study.py', 'from ..report.audit import show', 0), ('claims.py', 'from .report import audit', 1)])
def test_the_layer_check_sees_faults(tmp_path, place, line, faults):
    for name in ('starter/world.py', 'evaluation/benchmarks.py', 'evaluation/judges.py', 'report/audit.py', 'settings.py', 'trajectory.py', place):
        (tmp_path/'medagent'/name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path/'medagent'/name).write_text(line if name == place else '')
    assert len(layer_faults(tmp_path/'medagent'/place, tmp_path)) == faults


def exported_module(notebook: Path) -> Path | None:
    "The module that a notebook writes, or None."
    cells = [''.join(c['source']) for c in json.loads(notebook.read_text(encoding='utf-8'))['cells'] if c['cell_type'] == 'code']
    found = [m[1] for c in cells if (m := re.search(r'^#\|\s*default_exp\s+(\S+)', c, re.M))]
    return ROOT/'medagent'/Path(*found[0].split('.')).with_suffix('.py') if found else None


def test_modules_and_notebooks_belong_together():
    written = [m for n in NOTEBOOKS if (m := exported_module(n))]
    assert sorted(written) == MODULES                                # no orphan, no module missing, none written twice
    for path in MODULES:
        source = re.search(r'File to edit: (\S+\.ipynb)', path.read_text(encoding='utf-8'))
        assert source and exported_module((path.parent/source[1]).resolve()) == path, path


def test_pyproject_and_settings_agree():
    ini = configparser.ConfigParser()
    ini.read(ROOT/'settings.ini')
    toml = tomllib.loads((ROOT/'pyproject.toml').read_text())
    assert (ini['DEFAULT']['lib_name'], ini['DEFAULT']['lib_path'], ini['DEFAULT']['nbs_path']) == (
        toml['project']['name'], toml['tool']['nbdev']['lib_path'], toml['tool']['nbdev']['nbs_path'])
    assert (ROOT/ini['DEFAULT']['data_path']).is_dir()


def tracked() -> list[Path]:
    "Files that git has or would take; without git the test is skipped."
    done = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], capture_output=True, text=True)
    if done.returncode: pytest.skip('not a git checkout')
    return [ROOT/f for f in done.stdout.split('\0') if f and (ROOT/f).is_file()]


def test_no_machine_paths():
    paths = re.compile(r'(?<![\w.])/(?:work|root|home)/|\.\./shared\b')
    own = [f for f in tracked() if f.relative_to(ROOT).parts[0] not in ('tests', 'benchmarks')]
    assert len(own) > 40
    assert [str(f) for f in own if paths.search(f.read_text(encoding='utf-8', errors='replace'))] == []


def test_no_large_files():
    assert [str(f) for f in tracked() if f.stat().st_size > 1_000_000] == []


def test_public_names_load_on_first_use():
    code = '''
import sys, medagent
assert not {'torch', 'transformers', 'pandas', 'numpy'} & sys.modules.keys(), 'import medagent is slow'
for name in medagent.__all__: assert getattr(medagent, name) is not None and name in dir(medagent)
assert medagent.claims.read_claims is medagent.read_claims
assert medagent.rollout is sys.modules['medagent.agent.rollout'].rollout
try: medagent.no_such_name
except AttributeError as e: assert 'no_such_name' in str(e)
else: raise AssertionError
'''
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_licence_is_the_whole_text():
    text = (ROOT/'LICENSE').read_text()
    assert 'Version 2.0, January 2004' in text and 'END OF TERMS AND CONDITIONS' in text and len(text.splitlines()) > 190
