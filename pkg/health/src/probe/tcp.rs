//! A TCP check: succeeds when the port accepts a connection.

use super::connect as dial;
use crate::namespace::SocketFactory;
use crate::{ProbeOutcome, ProbeTarget};

pub(super) async fn connect(sockets: &SocketFactory, target: &ProbeTarget, port: u16) -> ProbeOutcome {
    match dial(sockets, target, port).await {
        Ok(_) => ProbeOutcome::success(format!("port {port} accepts connections")),
        Err(error) => error.into_outcome(),
    }
}
