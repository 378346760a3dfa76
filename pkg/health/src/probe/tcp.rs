//! A connection that is accepted, and nothing is said on it.

use super::connect as dial;
use crate::namespace::Sockets;
use crate::{Outcome, Target};

pub(super) async fn connect(sockets: &Sockets, target: &Target, port: u16) -> Outcome {
    match dial(sockets, target, port).await {
        Ok(_) => Outcome::good(format!("port {port} accepts connections")),
        Err(error) => error.into_outcome(),
    }
}
