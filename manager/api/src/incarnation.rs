//! Checks the incarnation of the cluster. Every response to a user carries this manager's incarnation, and
//! requests of callers that have seen a later one are rejected. A manager that was down when another one
//! forced a new incarnation cannot learn of it while it cannot reach the others; its responses, and the
//! changes it accepts, would belong to a superseded cluster.
//!
//! A user's or node's claim of a later incarnation is not proof, so only that caller is rejected. The same
//! claim by a manager is trusted: see [`warren_peers`].

use http::HeaderValue;
use tonic::Status;
use tonic::body::Body;
use tower::Service;
use warren_proto::status::INCARNATION;
use warren_store::Store;
use warren_store::incarnation::{LaterIncarnation, incarnation_of};
use warren_store::problem::status_of;
use warren_types::Violation;

use super::manager_addresses::is_user_request;
use super::middleware::{CallFuture, Middleware};

/// Checks user requests against the cluster's incarnation.
#[derive(Clone)]
pub struct IncarnationLayer {
    /// Holds the current incarnation.
    pub store: Store,
    /// Records that a caller has seen a later incarnation.
    pub later_incarnation: LaterIncarnation,
}

fn seen_incarnation<B>(request: &http::Request<B>) -> Result<u64, Status> {
    let Some(value) = request.headers().get(INCARNATION) else { return Ok(0) };
    let incarnation = value.to_str().ok().and_then(|text| text.parse().ok());
    incarnation.ok_or_else(|| status_of(Violation::new(INCARNATION, "is not a number; leave it out")))
}

impl Middleware for IncarnationLayer {
    fn call<S>(&self, inner: &mut S, request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        if !is_user_request(&request) {
            return Box::pin(inner.call(request));
        }
        let IncarnationLayer { store, later_incarnation } = self.clone();
        let checked = seen_incarnation(&request).and_then(|seen| later_incarnation.check(&store, seen));
        let answer = checked.map(|()| inner.call(request));
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => answer.await?,
                Err(status) => status.into_http(),
            };
            response
                .headers_mut()
                .insert(INCARNATION, HeaderValue::from(incarnation_of(&store.read().state)));
            Ok(response)
        })
    }
}
