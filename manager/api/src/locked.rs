//! The layer of a manager that is locked.

use http::Request;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;
use warren_proto::Problem;
use warren_proto::status::MANAGER_LOCKED;

use super::middleware::{CallFuture, Middleware};

/// Paths of the only service.
const SERVICE: &str = "/warren.v1.ManagerLock/";

/// Refuses everything but the calls that unlock the manager.
#[derive(Debug, Clone)]
pub struct LockedLayer;

impl Middleware for LockedLayer {
    fn call<S>(&self, inner: &mut S, request: Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        if request.uri().path().starts_with(SERVICE) {
            return Box::pin(inner.call(request));
        }
        let message = "this manager is locked, and waits for the unlock key of the cluster";
        let status = Status::from(Problem::new(Code::FailedPrecondition, MANAGER_LOCKED, message));
        let response = status.into_http();
        Box::pin(async move { Ok(response) })
    }
}
