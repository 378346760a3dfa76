//! Adds the addresses of all managers to every response to users, so that they can use another manager.

use http::HeaderValue;
use tonic::body::Body;
use tower::Service;
use warren_core::State;
use warren_security::{Peer, Role};
use warren_store::Store;
use warren_types::{CaRotation, Member, MemberId};

use super::middleware::{CallFuture, Middleware};

/// Header of responses to users: manager addresses as `HOST:PORT`, separated by commas; the responding one
/// first.
pub const MANAGERS_HEADER: &str = "warren-manager-addresses";

/// Header of responses to users: the digest of the only certificate authority that they trust; not sent if the
/// authority was never replaced, or while managers still show certificates of an earlier one.
pub const AUTHORITY_HEADER: &str = "warren-certificate-authority";

/// Adds [`MANAGERS_HEADER`] and [`AUTHORITY_HEADER`] to responses.
#[derive(Clone)]
pub struct ManagerAddressesLayer {
    /// Holds the managers.
    pub store: Store,
    /// The responding manager.
    pub member_id: MemberId,
}

/// Whether the caller is a user. Agents receive the addresses over their sessions; anonymous callers never
/// do.
pub(super) fn is_user_request<B>(request: &http::Request<B>) -> bool {
    match request.extensions().get::<Peer>().map(Peer::origin) {
        Some(Peer::Local { .. }) => true,
        Some(Peer::Certificate { identity, .. }) => identity.role() == Role::User,
        Some(Peer::Anonymous { .. } | Peer::Relayed { .. }) | None => false,
    }
}

/// Addresses of the managers that are not being removed; the responding one first.
fn manager_addresses(state: &State, responding: MemberId) -> String {
    let mut members: Vec<&Member> =
        state.members().map(|member| &**member).filter(|it| !it.removing).collect();
    members.sort_by_key(|member| (member.member_id != responding, member.member_id));
    let mut addresses: Vec<String> = Vec::with_capacity(members.len());
    for member in members {
        let address = member.address.to_string();
        // A manager and its replacement share one address.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.join(",")
}

impl Middleware for ManagerAddressesLayer {
    fn call<S>(&self, inner: &mut S, request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let is_user = is_user_request(&request);
        let (answer, layer) = (inner.call(request), self.clone());
        Box::pin(async move {
            let mut response = answer.await?;
            if is_user {
                let published = layer.store.read();
                let all = manager_addresses(&published.state, layer.member_id);
                // Addresses consist of ASCII letters, digits and punctuation.
                if let Ok(value) = HeaderValue::from_str(&all)
                    && !all.is_empty()
                {
                    response.headers_mut().insert(MANAGERS_HEADER, value);
                }
                let trusted = published.state.ca_rotation().and_then(CaRotation::trusted);
                // A digest consists of digits and letters.
                if let Some(Ok(value)) = trusted.map(|digest| HeaderValue::from_str(&digest.to_string())) {
                    response.headers_mut().insert(AUTHORITY_HEADER, value);
                }
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use warren_core::{Command, FEATURE_LEVEL};
    use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

    use super::*;

    const AT: Timestamp = Timestamp(1);

    #[test]
    fn answering_manager_is_first_and_leaving_ones_are_omitted() {
        let hash = TokenHash([7; 32]);
        let join = |number: u8, address: u8| Command::JoinManager {
            hash,
            id: ManagerId(Id(number.into())),
            name: format!("m{number}").parse().unwrap(),
            address: format!("10.0.0.{address}:8080").parse().unwrap(),
            level: FEATURE_LEVEL,
            at: AT,
        };
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let commands = [
            Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(1)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: FEATURE_LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: NodeRole::Manager,
                hash,
                expires_at: None,
                max_uses: None,
                labels: Default::default(),
                at: AT,
            },
            join(2, 2),
            join(3, 3),
            join(4, 4),
            // Replaces the third manager.
            join(5, 3),
            Command::RemoveMember { member: 4, at: AT },
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        assert_eq!(state.members().count(), 5);
        assert_eq!(manager_addresses(&state, 2), "10.0.0.2:8080,10.0.0.1:8080,10.0.0.3:8080");
        assert_eq!(manager_addresses(&state, 4), "10.0.0.1:8080,10.0.0.2:8080,10.0.0.3:8080");
        assert_eq!(manager_addresses(&State::new(), 1), "");
    }
}
