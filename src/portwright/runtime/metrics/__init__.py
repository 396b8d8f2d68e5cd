"""Metrics of an evaluation: made in a model's `__init__`, fed in its `__call__`, read by the session at the end."""

from portwright.runtime.metrics.base import (
    Metric,
    MetricValue,
    NoValueError,
    clear_registry,
    compute_all_metrics,
    registered_metrics,
    reset_all_metrics,
    uncounted,
)
from portwright.runtime.metrics.class_counts import (
    AccuracyMetric,
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MatthewsCorrelationCoefficientMetric,
    MeanIOUMetric,
)
from portwright.runtime.metrics.text import BitsPerXMetric, PerplexityMetric, RougeScoreMetric

__all__ = [
    "AccuracyMetric",
    "BitsPerXMetric",
    "DiceCoefficientMetric",
    "FBetaScoreMetric",
    "MatthewsCorrelationCoefficientMetric",
    "MeanIOUMetric",
    "Metric",
    "MetricValue",
    "NoValueError",
    "PerplexityMetric",
    "RougeScoreMetric",
    "clear_registry",
    "compute_all_metrics",
    "registered_metrics",
    "reset_all_metrics",
    "uncounted",
]
