//! What a server has done since its start.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Numbers of events since the server started, for metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct DnsCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DnsCounters {
            /// Each number with its name.
            pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> DnsCounters {
                DnsCounters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Queries received, without what was no query at all.
    queries,
    /// Queries answered from the table of names, also negatively.
    answered,
    /// Queries of senders that are no clients, or that may not ask this.
    refused,
    /// Queries that could not be read, or of a kind that is not served.
    malformed,
    /// Queries for which upstreams had to be asked.
    forwarded,
    /// Queries answered from the cache of upstreams' answers.
    cached,
    /// Queries that waited for the answer to an equal query of another client.
    joined,
    /// Queries without an answer: SERVFAIL.
    failures,
    /// Failures because too many queries waited for upstreams.
    overloads,
    /// Failures because an upstream asked back what it was asked.
    loops,
    /// Questions that an upstream left without an answer.
    upstream_timeouts,
    /// Connections closed at once because there were too many.
    rejected_connections,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
