"""What pays off: `plan` predicts it before anything runs, and `tune` measures it.

Both are tools beside a call: "auto" decides by the rule in `deeppcr.choose`.
"""

from deeppcr.planning.plan import Plan, plan
from deeppcr.planning.tune import tune

__all__ = ["Plan", "plan", "tune"]
