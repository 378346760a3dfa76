//! Encodes and decodes the original caller of a call that another manager forwards, and checks who may
//! forward.

use std::sync::Arc;

use tonic::{Code, Status};
use warren_peers::Peers;
use warren_peers::rejection::rejection_status;
use warren_proto::Problem;
use warren_security::{Identity, Peer, Role};

/// Metadata of a forwarded call: the original caller as written by [`encode`]. It is ignored unless a manager
/// sends it.
pub const CALLER_METADATA: &str = "warren-forwarded-caller";
/// Reason of the rejection of a forwarded call without a caller.
pub const CALLER_MISSING: &str = "CALLER_MISSING";

/// `certificate ROLE ID KEY ADDRESS`, `local UID GID` or `anonymous ADDRESS`; no part contains spaces. `None` for
/// callers whose calls are not forwarded.
pub fn encode(peer: &Peer) -> Option<String> {
    match peer {
        Peer::Certificate { identity, key, address } if identity.role() != Role::Manager => {
            Some(format!("certificate {} {} {key} {address}", identity.role(), identity.id()))
        }
        Peer::Local { uid, gid } => Some(format!("local {uid} {gid}")),
        Peer::Anonymous { address } => Some(format!("anonymous {address}")),
        Peer::Certificate { .. } | Peer::Relayed { .. } => None,
    }
}

/// Parses the output of [`encode`] in the cluster with that id.
fn decode(text: &str, cluster: &str) -> Option<Peer> {
    let parts: Vec<&str> = text.split(' ').collect();
    match parts[..] {
        ["certificate", role, id, key, address] => {
            let role =
                Role::ALL.into_iter().find(|known| known.as_str() == role && *known != Role::Manager)?;
            let identity = Identity::new(cluster, role, id).ok()?;
            Some(Peer::Certificate { identity, key: key.parse().ok()?, address: address.parse().ok()? })
        }
        ["local", uid, gid] => Some(Peer::Local { uid: uid.parse().ok()?, gid: gid.parse().ok()? }),
        ["anonymous", address] => Some(Peer::Anonymous { address: address.parse().ok()? }),
        _ => None,
    }
}

/// The original caller of a request that a manager forwards. The caller's permission is checked here again.
///
/// # Errors
/// The forwarding manager is not a member, or names no caller.
pub fn relayed_caller<B>(peers: &Peers, request: &http::Request<B>) -> Result<Option<Peer>, Status> {
    let Some(text) = request.headers().get(CALLER_METADATA) else { return Ok(None) };
    let Some(Peer::Certificate { identity, .. }) = request.extensions().get::<Peer>() else {
        return Ok(None);
    };
    if identity.role() != Role::Manager {
        return Ok(None);
    }
    peers.identify_caller(identity).map_err(rejection_status)?;
    let caller = text.to_str().ok().and_then(|text| decode(text, peers.cluster()));
    let unknown = || Problem::new(Code::InvalidArgument, CALLER_MISSING, "the forwarded call has no caller");
    let caller = Arc::new(caller.ok_or_else(unknown)?);
    Ok(Some(Peer::Relayed { caller, by: identity.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::PublicKeyHash;

    const CLUSTER: &str = "00000000000000000000000000000001";

    fn certificate_peer(role: Role) -> Peer {
        let identity = Identity::new(CLUSTER, role, "alice").unwrap();
        let key = PublicKeyHash([7; 32]);
        Peer::Certificate { identity, key, address: "[fd00::7]:40112".parse().unwrap() }
    }

    #[test]
    fn caller_round_trips() {
        let address = "10.0.0.7:40112".parse().unwrap();
        let local = Peer::Local { uid: 1000, gid: 7 };
        for peer in [
            certificate_peer(Role::User),
            certificate_peer(Role::Worker),
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
    fn relayed_manager_caller_is_rejected() {
        assert_eq!(encode(&certificate_peer(Role::Manager)), None);
        for text in [
            "certificate manager m1 10.0.0.7:1",
            "certificate root alice 00 10.0.0.7:1",
            "certificate user alice 00 10.0.0.7:1",
            "certificate user alice",
            "local 0",
            "anonymous",
            "",
        ] {
            assert_eq!(decode(text, CLUSTER), None, "{text}");
        }
    }
}
