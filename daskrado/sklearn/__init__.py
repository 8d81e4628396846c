"""scikit-learn's face: estimators over the same jobs, ledger and statements as the command line.

``pip install 'daskrado[sklearn]'``. Each estimator is one class in one file; ``tests/contracts/test_estimators.py``
walks this package.
"""

from daskrado.sklearn.classifier import PrivateClassifier
from daskrado.sklearn.folds import PrivateKFold
from daskrado.sklearn.labels import LabelPrivateClassifier
from daskrado.sklearn.rados import RadoClassifier
from daskrado.sklearn.regressor import PrivateRegressor
from daskrado.sklearn.search import PrivateSearchCV
from daskrado.sklearn.teachers import TeacherClassifier

__all__ = [
    "LabelPrivateClassifier",
    "PrivateClassifier",
    "PrivateKFold",
    "PrivateRegressor",
    "PrivateSearchCV",
    "RadoClassifier",
    "TeacherClassifier",
]
