//! Code that runs around every call of the API.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

/// The response of a call.
pub type CallFuture<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

/// What runs around a call.
pub trait Middleware: Clone {
    /// Handles the call, with `inner` for what it does not handle itself.
    fn call<S>(&self, inner: &mut S, request: Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static;
}

/// The layer of a [`Middleware`].
#[derive(Debug, Clone)]
pub struct MiddlewareLayer<M>(pub M);

/// See [`MiddlewareLayer`].
#[derive(Debug, Clone)]
pub struct MiddlewareService<M, S> {
    middleware: M,
    inner: S,
}

impl<M: Middleware, S> Layer<S> for MiddlewareLayer<M> {
    type Service = MiddlewareService<M, S>;

    fn layer(&self, inner: S) -> MiddlewareService<M, S> {
        MiddlewareService { middleware: self.0.clone(), inner }
    }
}

impl<M, S> Service<Request<Body>> for MiddlewareService<M, S>
where
    M: Middleware,
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = CallFuture<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> CallFuture<S::Error> {
        self.middleware.call(&mut self.inner, request)
    }
}
