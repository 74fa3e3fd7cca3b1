"""What the reward costs within a GRPO step at starter scale, from the stages of a finished demo.

    python benchmarks/reward.py [folder of a seed, such as outputs/study/starter-.../seed0]

Runs ten steps of the full recipe from the supervised policy of that seed, into a temporary folder, and takes the CPU time inside `score` (claims, verifier, all
terms) and inside the verifier alone. Ten steps are fewer than a run has, so the cache of the verifier is colder than later.
"""
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')

import medagent.training.grpo as grpo
from medagent import recipe
from medagent.settings import load_settings
from medagent.starter.study import study_preset
from medagent.starter.world import build_toolbox, build_world, draw_items
from medagent.verifier.nli import Verifier

STEPS, spent = 10, dict(score=0.0, verifier=0.0)


def timed(name: str, function):
    def call(*args, **kwargs):
        start = time.process_time()
        try: return function(*args, **kwargs)
        finally: spent[name] += time.process_time() - start
    return call


def main() -> None:
    folders = [Path(sys.argv[1])] if len(sys.argv) > 1 else sorted((load_settings().outputs_path/'study').glob('starter-*/seed*'))
    folder = next((f for f in folders if (f/'sft').is_dir() and (f/'verifier').is_dir()), None)
    if folder is None: raise SystemExit('no finished seed of a demo: run `make demo`, or name its folder')
    preset, seed = study_preset('starter'), int(folder.name.removeprefix('seed'))
    world = build_world(preset.world, seed)
    settings = replace(preset.grpo, steps=STEPS)
    items = draw_items(world, 'rl', STEPS*settings.prompts, seed=seed)
    grpo.score = timed('score', grpo.score)
    verifier = Verifier.from_folder(folder/'verifier')
    verifier.read = timed('verifier', verifier.read)
    with tempfile.TemporaryDirectory() as out:
        start = time.process_time()
        grpo.train_grpo(folder/'sft', items, build_toolbox(world, k=preset.data.k), recipe('medagent'), verifier, Path(out)/'run', settings, seed=seed, progress=False)
        total = time.process_time() - start
    print(f'{STEPS} steps: {total:.1f} CPU s; reward {spent["score"]:.2f} s, {spent["score"]/total:.1%} of it; verifier {spent["verifier"]:.2f} s, {spent["verifier"]/total:.1%}, {verifier.asked} pairs asked, {verifier.scored} scored')


if __name__ == '__main__': main()
