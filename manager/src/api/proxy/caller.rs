//! Who makes a call that another manager relays: what that one says of its caller, and whose word is taken.

use std::sync::Arc;

use tonic::{Code, Status};
use warren_proto::Problem;
use warren_security::{Identity, Peer, Role};

use crate::peers::Peers;
use crate::peers::roster::manager_of;

/// Metadata of a relayed call: who called the manager that relays it, as [`encode`] writes it. Of others than managers
/// it is worth nothing.
pub const CALLER: &str = "warren-caller";
/// Reason of a refusal of a relayed call without a caller.
pub const CALLER_MISSING: &str = "CALLER_MISSING";

/// `certificate ROLE ID ADDRESS`, `local UID GID` or `anonymous ADDRESS`; none has spaces in it. Nothing for whom no
/// manager relays calls.
pub fn encode(peer: &Peer) -> Option<String> {
    match peer {
        Peer::Certificate { identity, address } if identity.role() != Role::Manager => {
            Some(format!("certificate {} {} {address}", identity.role(), identity.id()))
        }
        Peer::Local { uid, gid } => Some(format!("local {uid} {gid}")),
        Peer::Anonymous { address } => Some(format!("anonymous {address}")),
        Peer::Certificate { .. } | Peer::Relayed { .. } => None,
    }
}

/// What [`encode`] wrote in the cluster with that id.
fn decode(text: &str, cluster: &str) -> Option<Peer> {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        ["certificate", role, id, address] => {
            let role =
                Role::ALL.into_iter().find(|known| known.as_str() == role && *known != Role::Manager)?;
            let identity = Identity::new(cluster, role, id).ok()?;
            Some(Peer::Certificate { identity, address: address.parse().ok()? })
        }
        ["local", uid, gid] => Some(Peer::Local { uid: uid.parse().ok()?, gid: gid.parse().ok()? }),
        ["anonymous", address] => Some(Peer::Anonymous { address: address.parse().ok()? }),
        _ => None,
    }
}

/// Whose request this is, if a manager relays it. Whether that one may make it is decided here once more.
///
/// # Errors
/// The manager is no member, or does not say who calls.
pub fn relayed_caller<B>(peers: &Peers, request: &http::Request<B>) -> Result<Option<Peer>, Status> {
    let Some(text) = request.headers().get(CALLER) else { return Ok(None) };
    let Some(Peer::Certificate { identity, .. }) = request.extensions().get::<Peer>() else {
        return Ok(None);
    };
    if identity.role() != Role::Manager {
        return Ok(None);
    }
    let (cluster, directory) = (peers.shared.dialer.cluster(), &peers.shared.directory);
    manager_of(identity, cluster).and_then(|id| directory.caller(id))?;
    let caller = text.to_str().ok().and_then(|text| decode(text, cluster));
    let unknown =
        || Problem::new(Code::InvalidArgument, CALLER_MISSING, "the relayed call does not say who makes it");
    let caller = Arc::new(caller.ok_or_else(unknown)?);
    Ok(Some(Peer::Relayed { caller, by: identity.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "00000000000000000000000000000001";

    fn certified(role: Role) -> Peer {
        let identity = Identity::new(CLUSTER, role, "alice").unwrap();
        Peer::Certificate { identity, address: "[fd00::7]:40112".parse().unwrap() }
    }

    #[test]
    fn a_caller_is_read_back_as_it_was_written() {
        let address = "10.0.0.7:40112".parse().unwrap();
        let local = Peer::Local { uid: 1000, gid: 7 };
        for peer in [
            certified(Role::Admin),
            certified(Role::Viewer),
            certified(Role::Worker),
            local.clone(),
            Peer::Anonymous { address },
        ] {
            assert_eq!(decode(&encode(&peer).unwrap(), CLUSTER), Some(peer));
        }
        let by = Identity::new(CLUSTER, Role::Manager, "m1").unwrap();
        let relayed = Peer::Relayed { caller: Arc::new(local), by };
        assert_eq!(relayed.to_string(), "uid 1000 through manager m1");
        assert_eq!(encode(&relayed), None, "it is not relayed once more");
    }

    #[test]
    fn nobody_speaks_for_a_manager() {
        assert_eq!(encode(&certified(Role::Manager)), None);
        for text in [
            "certificate manager m1 10.0.0.7:1",
            "certificate root alice 10.0.0.7:1",
            "certificate admin alice",
            "local 0",
            "anonymous",
            "",
        ] {
            assert_eq!(decode(text, CLUSTER), None, "{text}");
        }
    }
}
