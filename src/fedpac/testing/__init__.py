"""The contract of methods and engines as a part of the package: check your own before you rely on them.

from fedpac.testing import check_engine, check_method

for verdict in check_method(MyMethod, {"lam": 2.0}):
    print(verdict)
"""

from fedpac.testing.engine_checks import ENGINE_CHECKS, check_engine
from fedpac.testing.method_checks import METHOD_CHECKS, check_method, examine
from fedpac.testing.trial import Trial
from fedpac.testing.verdicts import Check, Verdict

__all__ = ["ENGINE_CHECKS", "METHOD_CHECKS", "Check", "Trial", "Verdict", "check_engine", "check_method", "examine"]
