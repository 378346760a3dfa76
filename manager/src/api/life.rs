//! In which life of the cluster this manager is: it says so with every answer to people, and refuses those that have
//! seen a later one. A manager that was away when others began that life has no other way to know as long as it cannot
//! reach them: its answers, and what it let people change, would be of a cluster that is over.
//!
//! What people and nodes say of a later life is no proof of it, so nobody but them is refused for it. Managers that
//! say so are believed: see [`crate::peers::End`].

use std::pin::Pin;
use std::task::{Context, Poll};

use http::HeaderValue;
use tonic::{Code, Status};
use tower::{Layer, Service};
use warren_core::State;
use warren_proto::Problem;
use warren_proto::status::{LIFE, OTHER_LIFE};
use warren_types::Violation;

use super::problem::status_of;
use super::whereabouts::is_person;
use crate::peers::Peers;
use crate::store::Store;

/// Holds requests of people to the life of the cluster that they have seen.
#[derive(Clone)]
pub struct LifeLayer {
    /// Knows which life it is.
    pub store: Store,
    /// Notes that somebody has seen a later one.
    pub peers: Peers,
}

/// See [`LifeLayer`].
#[derive(Clone)]
pub struct Life<S> {
    inner: S,
    layer: LifeLayer,
}

impl<S> Layer<S> for LifeLayer {
    type Service = Life<S>;

    fn layer(&self, inner: S) -> Life<S> {
        Life { inner, layer: self.clone() }
    }
}

/// The life of the cluster that `state` is in; 0 while it is of none.
pub fn life_of(state: &State) -> u64 {
    state.cluster().map_or(0, |cluster| cluster.incarnation)
}

/// Refuses somebody who has seen the life `seen` of the cluster, if that is later than this manager's.
///
/// # Errors
/// `Unavailable`, reason `OTHER_LIFE`: another manager may be in that one.
pub fn check(store: &Store, peers: &Peers, seen: u64) -> Result<(), Status> {
    let own = life_of(&store.read().state);
    // Without a state it is in none, and catches up first.
    if own == 0 || seen <= own {
        return Ok(());
    }
    peers.note_later_life(seen);
    let message = format!(
        "this manager is in life {own} of the cluster, and who asks has seen life {seen}, which began without it: ask \
         a manager of that one; if that life was a trial or a mistake, see that no manager of it runs, and take the \
         line `life` out of the contexts file"
    );
    Err(Problem::new(Code::Unavailable, OTHER_LIFE, message).into())
}

fn seen_by<B>(request: &http::Request<B>) -> Result<u64, Status> {
    let Some(value) = request.headers().get(LIFE) else { return Ok(0) };
    let life = value.to_str().ok().and_then(|text| text.parse().ok());
    life.ok_or_else(|| status_of(Violation::new(LIFE, "is no number; leave it out")))
}

impl<S, B> Service<http::Request<B>> for Life<S>
where
    S: Service<http::Request<B>, Response = http::Response<tonic::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if !is_person(&request) {
            return Box::pin(self.inner.call(request));
        }
        let LifeLayer { store, peers } = self.layer.clone();
        let checked = seen_by(&request).and_then(|seen| check(&store, &peers, seen));
        let answer = checked.map(|()| self.inner.call(request));
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => answer.await?,
                Err(status) => status.into_http(),
            };
            response.headers_mut().insert(LIFE, HeaderValue::from(life_of(&store.read().state)));
            Ok(response)
        })
    }
}
