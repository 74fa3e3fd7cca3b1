"""Medical retrieval agents whose every claim is entailed by the evidence it cites. Public names load on first use."""
__version__ = "0.1.0"

from importlib import import_module as _import_module

_MODULES = dict(  # public name -> the module it comes from
    parse='trajectory', render='trajectory', Trajectory='trajectory', read_claims='claims', Toolbox='retrieval.tools',
    rollout='agent.rollout', Verifier='verifier.nli', recipe='reward.recipes', score='reward.recipes', show='report.audit',
    MedAgentError='settings')
_ROOMS = ('settings', 'trajectory', 'claims', 'traces', 'retrieval', 'agent', 'verifier', 'reward', 'training', 'evaluation', 'baselines',
          'starter', 'report')

__all__ = list(_MODULES)

def __getattr__(name: str) -> object:
    "Import what is asked for (PEP 562), so that `import medagent` stays fast."
    if name in _MODULES: value = getattr(_import_module(f'medagent.{_MODULES[name]}'), name)
    elif name in _ROOMS: value = _import_module(f'medagent.{name}')
    else: raise AttributeError(f"module 'medagent' has no attribute {name!r}")
    globals()[name] = value
    return value

def __dir__() -> list[str]: return sorted({*globals(), *_MODULES, *_ROOMS})
