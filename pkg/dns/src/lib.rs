//! The DNS server of a node: it answers its tasks from the catalogues of their networks, without a manager, and
//! forwards every other question.
//!
//! The address of a query's sender decides what exists for it: a task sees the services of its networks and nothing
//! of others. The node itself (127.0.0.0/8 and its own addresses) sees every network that it knows, but nothing
//! outside of the cluster is forwarded for it, so that its own resolvers can use this server for `warren` without
//! making a loop. Everybody else is refused. Names of one label and names below `warren` never leave, nor do reverse
//! lookups of the cluster's addresses. For a task whose networks are all internal, nothing outside exists.
//!
//! The pure part must never do IO nor read a clock: [`resolve()`] decides, over a [`NameTable`], and [`react`] makes
//! bytes of it. Messages are those of hickory-server; its receive loops are not used, since they limit neither
//! connections nor queries, start a task for every datagram, and log every query.
//!
//! Start reading at `resolve.rs`, then `server.rs`, then `forward.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod counters;
mod forward;
mod packet;
mod resolv_conf;
mod resolve;
mod server;
mod table;

pub use counters::DnsCounters;
pub use packet::{ForwardedQuery, Reaction, ReplyKind, Transport, react};
pub use resolv_conf::{MAX_UPSTREAMS, PORT, parse_nameservers, resolv_conf, upstreams};
pub use resolve::{
    DOMAIN, ENDPOINT_TTL, InstanceName, NEGATIVE_TTL, Question, QuestionKind, Resolution, ServiceTarget,
    VIRTUAL_ADDRESS_TTL, Zone, resolve,
};
pub use server::{DnsError, DnsServer, DnsSockets};
pub use table::{ClientDnsSettings, DnsClient, NameTable, NetworkNames, NodeAddresses};
