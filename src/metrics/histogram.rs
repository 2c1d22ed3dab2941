//! A histogram of durations, counted with two atomic additions.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Clones share their counts. The library's own histogram takes a lock for each observation.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// In ascending order. The last bucket has none.
    bounds: &'static [Duration],
    buckets: Box<[AtomicU64]>,
    sum_nanos: AtomicU64,
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Histogram {
    /// For requests and calls of the gateway: 5 ms to two minutes.
    pub fn of_requests() -> Self {
        const BOUNDS: &[Duration] = &[
            millis(5),
            millis(25),
            millis(100),
            millis(500),
            millis(2_500),
            millis(10_000),
            millis(30_000),
            millis(120_000),
        ];
        Self::new(BOUNDS)
    }

    /// For commits to the ledger: 100 µs to 2.5 s.
    pub fn of_commits() -> Self {
        const BOUNDS: &[Duration] = &[
            Duration::from_micros(100),
            millis(1),
            millis(5),
            millis(20),
            millis(100),
            millis(500),
            millis(2_500),
        ];
        Self::new(BOUNDS)
    }

    fn new(bounds: &'static [Duration]) -> Self {
        let buckets = iter::repeat_with(AtomicU64::default).take(bounds.len() + 1).collect();
        Self(Arc::new(Counts { bounds, buckets, sum_nanos: AtomicU64::default() }))
    }

    pub fn observe(&self, elapsed: Duration) {
        let Counts { bounds, buckets, sum_nanos } = &*self.0;
        let index = bounds.partition_point(|bound| *bound < elapsed);
        if let Some(bucket) = buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Counts { bounds, buckets, sum_nanos } = &*self.0;
        let bounds = bounds.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        let counts = buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(sum_nanos.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn observations_count_up_to_their_bound() {
        let (histogram, mut registry) = (Histogram::of_commits(), Registry::default());
        registry.register("commits", "Commits", histogram.clone());
        for micros in [0, 100, 101, 999, 1_000, 2_000_000, 2_500_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        let lines: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("commits_")).collect();
        assert_eq!(
            lines,
            [
                "sum 4.502201",
                "count 7",
                "bucket{le=\"0.0001\"} 2",
                "bucket{le=\"0.001\"} 5",
                "bucket{le=\"0.005\"} 5",
                "bucket{le=\"0.02\"} 5",
                "bucket{le=\"0.1\"} 5",
                "bucket{le=\"0.5\"} 5",
                "bucket{le=\"2.5\"} 6",
                "bucket{le=\"+Inf\"} 7",
            ]
        );
    }
}
