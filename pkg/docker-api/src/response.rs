//! Responses: JSON, streams and errors.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream::Stream;
use futures::{StreamExt, TryStreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use warren_types::Timestamp;

use crate::docker_error::DockerError;
use crate::frames::{MULTIPLEXED, RAW};
use crate::objects::{Meta, Version};
use crate::request::VERSIONS;

/// Error that ends a streamed body.
pub type BodyError = std::io::Error;
/// A body.
pub type DockerBody = UnsyncBoxBody<Bytes, BodyError>;
/// A response.
pub type DockerResponse = Response<DockerBody>;
/// How a request ends.
pub type Answer = Result<DockerResponse, DockerError>;

fn full(bytes: impl Into<Bytes>) -> DockerBody {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn typed(status: StatusCode, kind: &'static str, body: DockerBody) -> DockerResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// 200 with JSON.
pub fn ok(value: &impl Serialize) -> Answer {
    Ok(with_json(StatusCode::OK, value))
}

/// 201 with JSON.
pub fn created(value: &impl Serialize) -> Answer {
    Ok(with_json(StatusCode::CREATED, value))
}

/// A status without a body.
pub fn empty(status: StatusCode) -> Answer {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    Ok(response)
}

/// 101: the connection is for output from then on, in plain bytes or in frames.
pub fn upgraded(is_raw: bool) -> DockerResponse {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(if is_raw { RAW } else { MULTIPLEXED }));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("tcp"));
    response
}

/// 200 with plain text.
pub fn text(text: &'static str) -> Answer {
    Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", full(text)))
}

fn with_json(status: StatusCode, value: &impl Serialize) -> DockerResponse {
    let mut json = serde_json::to_vec(value).expect("the keys of an answer are texts");
    json.push(b'\n');
    typed(status, "application/json", full(json))
}

/// The error of a request.
pub fn error(error: &DockerError) -> DockerResponse {
    with_json(error.status, &json!({"message": error.message}))
}

/// 200 with bytes as they come.
pub fn stream<S>(kind: &'static str, chunks: S) -> DockerResponse
where
    S: Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
{
    let frames = chunks.map(|chunk| chunk.map(Frame::data)).into_stream();
    typed(StatusCode::OK, kind, StreamBody::new(frames).boxed_unsync())
}

/// Adds the headers of every response.
pub fn add_headers(response: &mut DockerResponse) {
    let headers = response.headers_mut();
    let version = HeaderValue::from_str(&format!("1.{}", VERSIONS.end())).expect("digits are a header");
    headers.insert("api-version", version);
    headers.insert("docker-experimental", HeaderValue::from_static("false"));
    headers.insert("ostype", HeaderValue::from_static("linux"));
    headers.insert(
        "server",
        HeaderValue::from_static(concat!("Warren/", env!("CARGO_PKG_VERSION"), " (linux)")),
    );
}

/// A point in time in milliseconds, as Docker writes it: `2026-11-20T14:30:05.123Z`.
pub fn time(at_ms: u64) -> String {
    let seconds = Timestamp(at_ms).to_string();
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), at_ms % 1000)
}

/// The version, creation and last change of an object.
pub fn meta(version: u64, created_at: u64, updated_at: u64) -> Meta {
    let (created_at, updated_at) = (time(created_at), time(updated_at.max(created_at)));
    Meta { version: Version { index: version }, created_at, updated_at }
}

/// An object to be [`joined`].
pub fn to_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("the keys of an object are texts")
}

/// Both objects as one.
pub fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}
