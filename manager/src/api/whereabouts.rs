//! Tells people with every answer where all managers are, so that they can ask another one when this one is gone.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::HeaderValue;
use tower::{Layer, Service};
use warren_core::State;
use warren_security::{Peer, Role};
use warren_types::{Member, MemberId};

use crate::store::Store;

/// Header of answers to people: where managers are, `HOST:PORT` each, with commas between; the one that answers first.
pub const MANAGERS: &str = "warren-managers";

/// Adds [`MANAGERS`] to answers.
#[derive(Clone)]
pub struct WhereaboutsLayer {
    /// Knows the managers.
    pub store: Store,
    /// The one that answers.
    pub member: MemberId,
}

/// See [`WhereaboutsLayer`].
#[derive(Clone)]
pub struct Whereabouts<S> {
    inner: S,
    layer: WhereaboutsLayer,
}

impl<S> Layer<S> for WhereaboutsLayer {
    type Service = Whereabouts<S>;

    fn layer(&self, inner: S) -> Whereabouts<S> {
        Whereabouts { inner, layer: self.clone() }
    }
}

/// Agents are told where managers are by their sessions, and strangers not at all.
pub(super) fn is_person<B>(request: &http::Request<B>) -> bool {
    match request.extensions().get::<Peer>().map(Peer::origin) {
        Some(Peer::Local { .. }) => true,
        Some(Peer::Certificate { identity, .. }) => matches!(identity.role(), Role::Viewer | Role::Admin),
        Some(Peer::Anonymous { .. } | Peer::Relayed { .. }) | None => false,
    }
}

/// Where the managers that stay are; the answering one first.
fn addresses(state: &State, answering: MemberId) -> String {
    let mut stay: Vec<&Member> = state.members().map(|member| &**member).filter(|it| !it.removing).collect();
    stay.sort_by_key(|member| (member.member != answering, member.member));
    let mut addresses: Vec<String> = Vec::with_capacity(stay.len());
    for member in stay {
        let address = member.address.to_string();
        // A manager and the one that it replaces have one address.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.join(",")
}

impl<S, B, A> Service<http::Request<B>> for Whereabouts<S>
where
    S: Service<http::Request<B>, Response = http::Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let told = is_person(&request);
        let (answer, layer) = (self.inner.call(request), self.layer.clone());
        Box::pin(async move {
            let mut response = answer.await?;
            if told {
                let all = addresses(&layer.store.read().state, layer.member);
                // Addresses are of letters, digits and a few signs.
                if let Ok(value) = HeaderValue::from_str(&all)
                    && !all.is_empty()
                {
                    response.headers_mut().insert(MANAGERS, value);
                }
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_core::{Command, LEVEL};
    use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

    const AT: Timestamp = Timestamp(1);

    #[test]
    fn the_answering_manager_comes_first_and_none_twice_or_on_its_way_out() {
        let hash = TokenHash([7; 32]);
        let join = |number: u8, address: u8| Command::JoinManager {
            hash,
            id: ManagerId(Id(number.into())),
            name: format!("m{number}").parse().unwrap(),
            address: format!("10.0.0.{address}:8080").parse().unwrap(),
            level: LEVEL,
            at: AT,
        };
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let commands = [
            Command::CreateCluster { id, ranges, level: LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(1)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: NodeRole::Manager,
                hash,
                expires_at: None,
                max_uses: None,
                at: AT,
            },
            join(2, 2),
            join(3, 3),
            join(4, 4),
            // In the place of the third.
            join(5, 3),
            Command::RemoveMember { member: 4, at: AT },
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        assert_eq!(state.members().count(), 5);
        assert_eq!(addresses(&state, 2), "10.0.0.2:8080,10.0.0.1:8080,10.0.0.3:8080");
        assert_eq!(addresses(&state, 4), "10.0.0.1:8080,10.0.0.2:8080,10.0.0.3:8080");
        assert_eq!(addresses(&State::new(), 1), "");
    }
}
