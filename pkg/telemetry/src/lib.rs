//! Monitoring of a node: `/metrics`, `/health` and `/ready` over plain HTTP.
//!
//! Each component of a node (its manager, its worker) adds its metrics and its [`StatusProbe`]s to a [`Telemetry`],
//! which a server exposes. A scrape computes metrics from existing state, so an unused endpoint costs next to
//! nothing. There is no authentication: secrets must never become a metric or a label, and the endpoints are
//! read-only.
//!
//! Start reading at [`Telemetry`], then `server.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod background;
mod component;
mod probe;
mod series;
mod server;

pub use background::{BackgroundTaskMetrics, background_task_probe};
pub use component::{Telemetry, TelemetryComponent};
pub use probe::StatusProbe;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Registry;
pub use series::{
    MetricKind, MetricLabels, latency_buckets, short_latency_buckets, write_series, write_value,
};
pub use server::{MetricsBindError, MetricsServer};
