//! What a node tells about itself to monitoring: `/metrics`, `/health` and `/ready` over plain HTTP.
//!
//! A [`Part`] of a node (its manager, its worker) brings its metrics and its [`Probe`]s; a [`Telemetry`] puts the parts
//! together, and a [`Server`] answers for them. A scrape computes what it shows from what is there anyway, so a node
//! that nobody scrapes pays next to nothing. Whoever can reach the address may read everything: nothing secret may
//! become a metric or a label, and nothing here changes anything.
//!
//! Start reading at [`Telemetry`], then `server.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod loops;
mod part;
mod probe;
mod series;
mod server;

pub use loops::{LoopMetrics, loop_probe};
pub use part::{Part, Telemetry};
pub use probe::Probe;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Registry;
pub use series::{Kind, Labels, fractions_of_a_second, seconds, write_series, write_value};
pub use server::{BindError, Server};
