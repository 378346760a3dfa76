//! Whether tasks can get a network.

/// Why tasks have no network during [`NodeNetworkState::Pending`].
pub(crate) const NETWORK_PENDING: &str = "node network is not ready yet";

/// Whether tasks can get a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeNetworkState {
    /// The agent has just started and not tried yet.
    Pending,
    /// The node network is set up.
    Ready,
    /// It is not set up, for this reason.
    NotReady(String),
}
