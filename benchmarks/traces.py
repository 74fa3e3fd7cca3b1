"""What is in trace files: one row for each file.

    python benchmarks/traces.py FILE ...

Reads every format that `medagent audit` reads and prints a table in Markdown: trajectories, calls, observations without a passage, answers, stop reasons and defects by kind.
"""
import sys
from collections import Counter
from pathlib import Path

from medagent.cli import trace_counts
from medagent.settings import MedAgentError
from medagent.traces import read_traces

NAMES = ('trajectories', 'calls', 'empty observations', 'answers', 'claims')
print(f'| file | {" | ".join(NAMES)} | stopped | defects | unreadable records |\n|---|{"---:|"*len(NAMES)}---|---|---:|')
for path in map(Path, sys.argv[1:]):
    counts: Counter[str] = Counter()
    def bad(error: MedAgentError) -> None: counts['unreadable'] += 1
    for t in read_traces(path, bad): counts.update(trace_counts(t))
    listed = lambda prefix: ', '.join(f'{k.removeprefix(prefix)} {n}' for k, n in sorted(counts.items()) if k.startswith(prefix) and n) or 'none'
    print(f'| {path.name} | {" | ".join(str(counts[n]) for n in NAMES)} | {listed("stopped: ")} | {listed("defect: ")} | {counts["unreadable"]} |')
