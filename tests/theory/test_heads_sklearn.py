"""The Gaussian head against scikit-learn's linear discriminant analysis on all data pooled."""

import numpy as np
import pytest

from chronofed import Custom, Frozen, Gaussian, Method
from tests.theory.test_heads import World, last_of, of_model, task

analysis = pytest.importorskip(
    "sklearn.discriminant_analysis", reason="pip install scikit-learn, to compare heads with it"
)


@pytest.mark.parametrize("shrinkage", [0.0, 0.25])
def test_without_decay_it_is_scikit_learns(shrinkage):
    """With features of a body that does not train, from clients that each have some of the classes."""
    learned = task("double_mlp")
    assert isinstance(learned.model, Custom)
    head = Gaussian(decay=1.0, shrinkage=shrinkage, prior="seen")
    last = last_of(Method(Frozen(), head=head), learned, rounds=6)
    rows = np.concatenate([v.indices for t in range(6) for v in World().at(t).visits.values()])
    objective, every = learned.objective(), learned.data.train
    features = objective.features(last.params, every.x).numpy()
    reference = analysis.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    reference.fit(features[rows], every.y.numpy()[rows])
    want = reference.predict_proba(features)
    np.testing.assert_allclose(of_model(last, learned), want, atol=1e-9)
