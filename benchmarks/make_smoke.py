"""Makes the small weights that the smoke preset starts from: python benchmarks/make_smoke.py

Trains policy (pretraining and cold start) and verifier of the preset `smoke_start` on seed 0 and copies them to data/starter/smoke.
Needed again whenever the starter vocabulary changes: a new fact, phrase or drug. Takes a few minutes on a laptop.
"""
import shutil

from medagent.settings import load_settings
from medagent.starter.study import run_stage, setting, study_preset

if __name__ == '__main__':
    s = setting(study_preset('smoke_start'), 0)
    shutil.rmtree(s.folder)  # the vocabulary also comes from code, which no hash of the folder covers
    s.folder.mkdir()
    for stage in ('base', 'verifier', 'sft'):
        print(stage, flush=True)
        run_stage(s, lambda label, work: None, stage)
    out = load_settings().data_path/'starter'/'smoke'
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(s.folder/'sft', out/'policy', ignore=shutil.ignore_patterns('funnel.csv'))
    shutil.copytree(s.folder/'verifier', out/'verifier', ignore=shutil.ignore_patterns('errors.csv'))
    print((s.folder/'verifier'/'errors.csv').read_text())
