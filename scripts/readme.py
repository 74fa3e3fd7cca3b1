"Write README.md from nbs/index.ipynb: markdown as it is, code with its saved output, hidden cells left out."
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTE = '<!-- Written by scripts/readme.py from nbs/index.ipynb; edit the notebook, then `make sync`. -->'
TABLE = re.compile(r'(<!-- begin (\S+) -->\n).*?(<!-- end -->)', re.S)


def fill(
    text: str,  # markdown
    root: Path,  # paths in markers count from here
) -> str:  # markdown
    "Put the content of a file between `<!-- begin PATH -->` and `<!-- end -->`; without the file the text there stays."
    def content(m: re.Match[str]) -> str:
        path = root/m[2]
        return f"{m[1]}\n{path.read_text(encoding='utf-8').strip()}\n\n{m[3]}" if path.is_file() else m[0]
    return TABLE.sub(content, text)


def fenced(code: str, language: str = '') -> str: return f'```{language}\n{code.rstrip()}\n```'


def outputs(cell: dict) -> list[str]:
    "Saved text and markdown outputs of a code cell; pictures have no place in a README."
    found = []
    for out in cell['outputs']:
        data = out.get('data', {})
        if 'text/markdown' in data: found.append(''.join(data['text/markdown']).strip())
        elif text := ''.join(out.get('text', data.get('text/plain', ''))).strip(): found.append(fenced(text))
    return found


def readme(
    notebook: dict,  # nbs/index.ipynb
    root: Path,  # paths in markers count from here
) -> str:  # GitHub-flavoured markdown
    "The front page as one text; the same notebook always gives the same text."
    parts = [NOTE]
    for cell in notebook['cells']:
        source = ''.join(cell['source']).strip()
        if re.search(r'^#\|\s*hide\s*$', source, re.M): continue
        if cell['cell_type'] == 'markdown': parts.append(fill(source, root))
        elif cell['cell_type'] == 'code':
            code = re.sub(r'^#\|.*\n?', '', source, flags=re.M).strip()
            if code: parts.append(fenced(code, 'python'))
            parts += outputs(cell)
    return '\n\n'.join(filter(None, parts)) + '\n'


if __name__ == '__main__':
    notebook = json.loads((ROOT/'nbs'/'index.ipynb').read_text(encoding='utf-8'))
    (ROOT/'README.md').write_text(readme(notebook, ROOT), encoding='utf-8')
