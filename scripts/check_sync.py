"Check, in a copy and without changing a file, that modules, notebooks and README.md are what the tools would write."
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDERS = ('nbs', 'medagent', 'scripts', 'outputs')


def contents(root: Path) -> dict[str, bytes]:
    "Every file that the tools may write, by relative path."
    files = [root/'README.md', *(f for folder in ('nbs', 'medagent') for f in (root/folder).rglob('*'))]
    return {str(f.relative_to(root)): f.read_bytes() for f in files if f.is_file() and not {'__pycache__', '.ipynb_checkpoints'} & {*f.parts}}


def copied(root: Path, to: Path) -> Path:
    "What the tools read: settings, notebooks, modules, reported tables."
    for name in ('pyproject.toml', 'settings.ini', 'README.md'): shutil.copy2(root/name, to/name)
    for name in FOLDERS:
        skip = shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints') if name != 'outputs' else lambda folder, names: [
            n for n in names if not (Path(folder)/n).is_dir() and not n.endswith('.md')]
        if (root/name).is_dir(): shutil.copytree(root/name, to/name, ignore=skip)
    return to


def stale_files(
    root: Path,  # a checkout
) -> list[str]:  # sorted relative paths
    "Files that export, clean and the README generator would add, change or remove."
    with tempfile.TemporaryDirectory() as folder:
        work = copied(root, Path(folder))
        before = contents(work)
        env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}   # nbdev-export does nothing under IN_TEST
        tools = Path(sys.executable).parent
        for command in ([tools/'nbdev-export'], [tools/'nbdev-clean'], [sys.executable, 'scripts/readme.py']):
            subprocess.run(command, cwd=work, env=env, check=True)
        after = contents(work)
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


if __name__ == '__main__':
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    if stale := stale_files(root):
        sys.exit('\n'.join(['not in step with the notebooks (run `make sync`, look at the difference, then commit):', *(f'  {name}' for name in stale)]))
