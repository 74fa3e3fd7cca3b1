"""The verifier measured: the pairs of a batch of rollouts scored by ours and by the plain pipeline of transformers, same model, same pairs.

    python benchmarks/verifier.py [folder or hub id of a model]

5,000 pairs as a reward asks for them: a question has five passages, eight trajectories write two claims each out of four, and every claim is checked against all five.
Texts are the gold pairs of data/gold. Without an argument the model is a random one of 4 layers and 128 dimensions; what it says does not matter here.
Times are CPU seconds of one thread. Numbers go to data/measured/verifier.json, the table to outputs/starter/verifier_speed.md.
"""
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline
from transformers.utils import logging

from medagent.settings import load_settings, write_atomic
from medagent.verifier.nli import Verifier

torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()
ROOT = load_settings().root
PAIRS, LABELS = 5000, {0: 'not_entailment', 1: 'entailment'}


def rollout_pairs() -> list[tuple[str, str]]:
    "The pairs, in the order in which trajectories ask for them."
    rng, gold = random.Random(0), [json.loads(line) for line in (ROOT/'data'/'gold'/'nli.jsonl').read_text(encoding='utf-8').splitlines()]
    premises, claims, found = sorted({g['premise'] for g in gold}), sorted({g['claim'] for g in gold}), []
    while len(found) < PAIRS:
        passages, said = rng.sample(premises, 5), rng.sample(claims, 4)
        found += [(p, c) for _ in range(8) for c in rng.sample(said, 2) for p in passages]
    return found[:PAIRS]


def small_model(folder: str, texts: list[str]) -> str:
    "A random BERT with a word-piece vocabulary of these texts."
    tokenizer = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=4000, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]']))
    tokenizer.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1', special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]', model_max_length=512, model_input_names=['input_ids', 'token_type_ids', 'attention_mask'])
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(vocab_size=len(fast), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, id2label=LABELS, label2id={v: k for k, v in LABELS.items()}, initializer_range=.1)).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def main() -> None:
    pairs = rollout_pairs()
    with tempfile.TemporaryDirectory() as folder:
        source = sys.argv[1] if len(sys.argv) > 1 else small_model(folder, [t for pair in pairs for t in pair])
        tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForSequenceClassification.from_pretrained(source, id2label=LABELS, label2id={v: k for k, v in LABELS.items()}, ignore_mismatched_sizes=True)
        torch.manual_seed(0)
        plain = pipeline('text-classification', model=model, tokenizer=tokenizer, top_k=None, device='cpu')
        asked = [dict(text=p, text_pair=c) for p, c in pairs]
        entailed = lambda outs: np.array([next(o['score'] for o in out if o['label'] == 'entailment') for out in outs])
        ways = {'pipeline, one by one': lambda: entailed([plain(a, truncation=True) for a in asked]), 'pipeline, batches of 32': lambda: entailed(plain(asked, batch_size=32, truncation=True)),
                'ours': lambda: Verifier(model, tokenizer, 'ours').score(pairs), 'ours, without the repeated pairs': lambda: Verifier(model, tokenizer, 'ours').score(list(dict.fromkeys(pairs)))}
        rows, scores = [], {}
        for name, work in ways.items():
            start = time.process_time()
            scores[name] = work()
            seconds = time.process_time() - start
            rows.append(dict(way=name, pairs=len(scores[name]), cpu_s=round(seconds, 2), pairs_per_s=round(len(scores[name])/seconds)))
            print(rows[-1], flush=True)
        apart = float(np.abs(scores['pipeline, one by one'] - scores['ours']).max())
    result = dict(model=Path(source).name if len(sys.argv) > 1 else 'BERT, 4 layers, 128 dimensions', parameters=sum(p.numel() for p in model.parameters()), pairs=len(pairs), distinct=len(set(pairs)), rows=rows, times_one_by_one=round(rows[0]['cpu_s']/rows[2]['cpu_s'], 1), times_batched=round(rows[1]['cpu_s']/rows[2]['cpu_s'], 1), largest_difference=apart)
    path = ROOT/'data'/'measured'/'verifier.json'
    kept = [r for r in (json.loads(path.read_text()) if path.exists() else []) if r['model'] != result['model']] + [result]
    write_atomic(path, json.dumps(kept, indent=1) + '\n')
    lines = ['Command: `python benchmarks/verifier.py [model]`; CPU seconds of one thread.', '', '| model | pairs | distinct | pipeline, one by one | pipeline, batches of 32 | ours | times one by one | times batched | largest difference of a score |', '|---|---|---|---|---|---|---|---|---|']
    for r in kept: lines.append(f'| {r["model"]} | {r["pairs"]:,} | {r["distinct"]:,} | ' + ' | '.join(f'{row["cpu_s"]:.1f} s' for row in r['rows'][:3]) + f' | {r["times_one_by_one"]} | {r["times_batched"]} | {r["largest_difference"]:.0e} |')
    write_atomic(ROOT/'outputs'/'starter'/'verifier_speed.md', '\n'.join(lines) + '\n')
    print('\n'.join(lines))


if __name__ == '__main__': main()
