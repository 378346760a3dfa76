//! Encodes metrics that are computed at each scrape.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::exponential_buckets;

/// Label names and values.
pub type MetricLabels = Vec<(&'static str, String)>;

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only increases. `_total` is appended to its name.
    Counter,
    /// Increases and decreases.
    Gauge,
}

impl MetricKind {
    fn as_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }

    fn write(self, value: f64, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter => ConstCounter::new(value).encode(encoder),
            Self::Gauge => ConstGauge::new(value).encode(encoder),
        }
    }
}

/// Writes a metric with a value per set of labels; writes nothing without values.
///
/// # Errors
/// Those of the encoder.
pub fn write_series(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricKind,
    (name, help): (&str, &str),
    series: impl IntoIterator<Item = (MetricLabels, f64)>,
) -> fmt::Result {
    let mut series = series.into_iter().peekable();
    if series.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, kind.as_type())?;
    for (labels, value) in series {
        kind.write(value, metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Writes a metric without labels.
///
/// # Errors
/// Those of the encoder.
pub fn write_value(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricKind,
    (name, help): (&str, &str),
    value: f64,
) -> fmt::Result {
    kind.write(value, encoder.encode_descriptor(name, help, None, kind.as_type())?)
}

/// Histogram buckets for user-visible durations: 10 ms to 164 s.
pub fn latency_buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.01, 2.0, 15)
}

/// Histogram buckets for internal durations: 0.25 ms to 8 s.
pub fn short_latency_buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.000_25, 2.0, 16)
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let hostile = vec![("service", "a\"b\\\n".to_owned())];
            let of = |slot: &str| vec![("service", "web".to_owned()), ("slot", slot.to_owned())];
            let series = [(of("1"), 1.5), (of("2"), 3e12), (hostile, 0.0)];
            write_series(&mut encoder, MetricKind::Counter, ("cpu_seconds", "Time."), series)?;
            write_series(&mut encoder, MetricKind::Gauge, ("nothing", "Is not shown."), [])?;
            write_value(&mut encoder, MetricKind::Gauge, ("tasks", "How many."), 7.0)
        }
    }

    #[test]
    fn series_are_written_in_prometheus_format() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Sample));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let expected = "# HELP cpu_seconds Time.\n# TYPE cpu_seconds counter\n\
                      cpu_seconds_total{service=\"web\",slot=\"1\"} 1.5\n\
                      cpu_seconds_total{service=\"web\",slot=\"2\"} 3000000000000.0\n\
                      cpu_seconds_total{service=\"a\\\"b\\\\\\n\"} 0.0\n\
                      # HELP tasks How many.\n# TYPE tasks gauge\ntasks 7.0\n# EOF\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn histogram_bounds_increase() {
        for bounds in [latency_buckets().collect::<Vec<_>>(), short_latency_buckets().collect()] {
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        }
        assert!((latency_buckets().last().unwrap() - 163.84).abs() < 0.001);
    }
}
