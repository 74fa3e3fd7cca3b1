"Build the website of the notebooks in _docs with smalldocs: no network, nothing is executed, outputs are those saved."
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


def site(
    notebooks: list[str],  # relative paths without index.ipynb
) -> dict:  # content of _quarto.yml, which smalldocs reads
    "One sidebar section for each room, in the order of the notebooks."
    rooms: dict[str, list[str]] = {}
    for name in notebooks: rooms.setdefault(name.rpartition('/')[0] or 'basics', []).append(name)
    sidebar = ['index.ipynb', *(dict(section=room, contents=pages) for room, pages in rooms.items())]
    return dict(project=dict(type='website'), format=dict(html=dict(toc=True)),
                website=dict(title='medagent', sidebar=dict(style='floating', contents=sidebar)))


def shown(
    notebook: dict,  # as saved
) -> dict:  # as a reader shall see it
    "The notebook without hidden cells, module names and directive lines."
    cells = []
    for cell in notebook['cells']:
        source = ''.join(cell['source'])
        if re.search(r'^#\|\s*(hide\s*$|default_exp\b)', source, re.M): continue
        cells.append(cell | dict(source=re.sub(r'^#\|.*\n?', '', source, flags=re.M)))
    return notebook | dict(cells=cells)


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pages = sorted(p.relative_to(ROOT/'nbs') for p in (ROOT/'nbs').rglob('*.ipynb') if not any(part[0] in '._' for part in p.parts[len(ROOT.parts):]))
        for page in pages:
            (work/page).parent.mkdir(parents=True, exist_ok=True)
            (work/page).write_text(json.dumps(shown(json.loads((ROOT/'nbs'/page).read_text(encoding='utf-8')))), encoding='utf-8')
        (work/'_quarto.yml').write_text(yaml.safe_dump(site([str(p) for p in pages if p.name != 'index.ipynb']), sort_keys=False))
        subprocess.run([Path(sys.executable).parent/'smalldocs', 'render', str(work)], check=True)
        shutil.rmtree(ROOT/'_docs', ignore_errors=True)
        shutil.copytree(next(work.glob('_*/index.html')).parent, ROOT/'_docs')
    print(ROOT/'_docs'/'index.html')
