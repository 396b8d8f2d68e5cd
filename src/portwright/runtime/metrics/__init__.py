"""Metrics of an evaluation: made in a model's `__init__`, fed in its `__call__`, read by the session at the end."""

from portwright.runtime.metrics.accuracy import AccuracyMetric
from portwright.runtime.metrics.base import Metric, MetricValue, NoValueError
from portwright.runtime.metrics.bits_per_x import BitsPerXMetric
from portwright.runtime.metrics.dice_coefficient import DiceCoefficientMetric
from portwright.runtime.metrics.fbeta_score import FBetaScoreMetric
from portwright.runtime.metrics.matthews import MatthewsCorrelationCoefficientMetric
from portwright.runtime.metrics.mean_iou import MeanIOUMetric
from portwright.runtime.metrics.perplexity import PerplexityMetric
from portwright.runtime.metrics.registry import (
    clear_registry,
    compute_all_metrics,
    registered_metrics,
    reset_all_metrics,
    uncounted,
)
from portwright.runtime.metrics.rouge_score import RougeScoreMetric

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
