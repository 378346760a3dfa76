//! Managers communicate over real connections; `fixture` has the managers, `proxy` the network faults.

mod calls;
mod fixture;
mod messages;
mod proxy;
mod rejections;
mod snapshots;
