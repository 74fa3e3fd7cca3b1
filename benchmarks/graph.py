"""The graph at size: build time, size and memory, and what a lookup costs, on generated rows in the proportions of UMLS with DrugBank.

    python benchmarks/graph.py --names 500000

For n names: 0.42 n concepts, 2 n relations, most of them between ordinary concepts with few relations each, and one tenth drug-drug interactions among
n/1250 drugs (325 partners each where n is 5 million). Names are made of syllables, so that their vocabulary is about as large as that of a terminology.
Times are CPU time of this process; lookups are medians over random ones, so that caches are as warm as random access leaves them. The numbers go to
data/measured/graph.json, from which the page on scale computes.
"""
import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from medagent.retrieval.graph import GraphIndex, GraphReport, Kind, Name, Record, Relation, build_graph
from medagent.settings import load_settings, write_atomic

SYLLABLES = [a + b for a in 'b c d f g h l m n p r s t v z'.split() for b in 'a e i o u an er il ox'.split()]


def word(n: int) -> str:
    "A word that belongs to the number."
    rng = random.Random(n)
    return ''.join(rng.choice(SYLLABLES) for _ in range(rng.randint(3, 5)))


def name(concept: int, which: int, names: int) -> str:
    "One to four words, of a vocabulary an eighth as large as the number of names."
    rng = random.Random(concept*16 + which)
    return ' '.join([word(rng.randrange(names//8)) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))] + [str(concept)])


def rows(names: int) -> Iterator[Record]:
    "The generated terminology."
    rng, concepts, drugs = random.Random(0), int(.42*names), max(2, names//1250)
    for n in range(names): yield Name(f'C{n % concepts:08d}', name(n % concepts, n // concepts, names), n // concepts)
    for d in range(drugs): yield Kind(f'C{d:08d}', 'drug')
    for d in range(drugs, 4*drugs): yield Kind(f'C{d:08d}', 'disease')
    for _ in range(int(1.8*names)):
        a, b = rng.randrange(concepts), int(concepts*rng.random()**3)        # some are related to much
        yield Relation(f'C{a:08d}', f'predicate {rng.randrange(400)}', f'C{b:08d}', f'source {rng.randrange(20)}', provenance=f'R{rng.randrange(10**8)}')
    for _ in range(int(.2*names)):
        a, b = rng.sample(range(drugs), 2)
        a, b = min(a, b), max(a, b)
        yield Relation(f'C{a:08d}', 'interacts with', f'C{b:08d}', 'interactions', symmetric=True, passage=f'I{a}+{b}', text=f'The effect of {a} may be increased by {b}.')


def median_ms(work: Callable[[int], object], times: int) -> tuple[float, float]:
    "Median and 95th percentile of CPU milliseconds."
    taken = []
    for i in range(times):
        start = time.process_time()
        work(i)
        taken.append(1e3*(time.process_time() - start))
    return round(statistics.median(taken), 3), round(sorted(taken)[int(.95*times)], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--names', type=int, default=500_000)
    parser.add_argument('--times', type=int, default=1000, help='lookups of each sort')
    parser.add_argument('--folder', type=Path, help='where the file is built (needs about 600 bytes for a name); a temporary folder by default')
    args = parser.parse_args()
    n, concepts, drugs = args.names, int(.42*args.names), max(2, args.names//1250)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        start = time.process_time()
        for _ in rows(n): pass
        making = time.process_time() - start
        start, path = time.process_time(), Path(folder)/'graph.sqlite'
        build_graph(rows(n), path, GraphReport(), progress=False)
        built = time.process_time() - start - making
        size, peak = path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024
        print(f'{n} names, {concepts} concepts: built in {built:.0f} CPU s ({1e6*built/n:.0f} us a name with its two relations), {size/n:.0f} bytes a name, '
              f'peak memory {peak/1e6:.0f} MB', flush=True)
        start = time.process_time()
        g = GraphIndex.open(path)
        print(f'opened in {1e3*(time.process_time() - start):.1f} CPU ms')
        rng = random.Random(1)
        ordinary = [rng.randrange(concepts//2, concepts) for _ in range(args.times)]
        exact = [name(c, rng.randrange(2), n) for c in ordinary]
        pairs = [rng.sample(range(drugs), 2) for _ in range(args.times)]
        scrambled = [' '.join(e.split()[::-1]) for e in exact]
        typo = [w[:2] + w[3:] for w in (word(rng.randrange(n//8)) for _ in range(args.times))]
        code = [f'C{c:08d}' for c in ordinary]
        db = g._db
        work: dict[str, Callable[[int], object]] = {
            'name, exact, in SQL': lambda i: db.execute('select concept from name where key = ?', (exact[i],)).fetchall(),
            'relations of a concept, in SQL': lambda i: db.execute('select object from edge where subject = ?', (ordinary[i],)).fetchall(),
            'find: exact name': lambda i: g.find(exact[i]),
            'find: words in another order': lambda i: g.find(scrambled[i]),
            'find: a misspelt word': lambda i: g.find(typo[i]),
            'find: no such name': lambda i: g.find('xyzzy of plughx'),
            'facts of a code': lambda i: g.facts(code[i]),
            'search: one ordinary concept': lambda i: g.search([exact[i] + ' predicate'], 5),
            'search: two drugs, with what joins them': lambda i: g.search([f'{name(pairs[i][0], 0, n)} with {name(pairs[i][1], 0, n)}'], 5),
        }
        table = []
        for what, do in work.items():
            few = max(20, args.times//20) if 'drugs' in what else args.times
            do(0)
            table.append((what, *median_ms(do, few)))
        print(pd.DataFrame(table, columns=['lookup', 'median CPU ms', '95 %']).to_string(index=False))
        hit = sum(bool(g.find(e)) for e in exact)
        print(f'{hit} of {len(exact)} exact names found')
        write_atomic(load_settings().root/'data'/'measured'/'graph.json', json.dumps(dict(names=n, concepts=concepts, build_cpu_s=round(built, 1), bytes=size, peak_bytes=peak, lookups=[dict(lookup=w, median_ms=m, p95_ms=p) for w, m, p in table]), indent=1) + '\n')


if __name__ == '__main__': main()
