//! An HTTP check: an HTTP/1.1 GET that succeeds with a status of 200 to 399.
//!
//! Status and headers decide. Redirects are followed on the same host and port; a redirect to another host
//! or without a valid target counts as success, since the server that sent it works.

mod redirect;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use warren_types::spec::HttpHeader;

use super::connect;
use crate::namespace::SocketFactory;
use crate::{MAX_OUTPUT, ProbeOutcome, ProbeTarget};

/// Limit of consecutive redirects.
const MAX_REDIRECTS: usize = 5;
/// Limit of status line and headers, in bytes.
const MAX_HEADERS_SIZE: usize = 16 << 10;
/// How long to wait for the body of a failed answer, which is only shown.
const BODY_TIMEOUT: Duration = Duration::from_millis(250);

/// Requests `path` and the targets of its redirects.
pub(super) async fn get(
    sockets: &SocketFactory,
    target: &ProbeTarget,
    port: u16,
    path: &str,
    headers: &[HttpHeader],
) -> ProbeOutcome {
    let headers = match all_headers(port, headers) {
        Ok(headers) => headers,
        Err(outcome) => return outcome,
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let mut path = path.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let Ok(uri) = path.parse::<Uri>() else {
            return ProbeOutcome::failure(format!("{path:?} is not a valid path"));
        };
        let stream = match connect(sockets, target, port).await {
            Ok(stream) => stream,
            Err(error) => return error.into_outcome(),
        };
        let response = match send_request(TokioIo::new(stream), uri, &headers).await {
            Ok(response) => response,
            Err(error) => {
                return ProbeOutcome::failure(format!("no HTTP from :{port}{path}: {}", error_text(&error)));
            }
        };
        match redirect::of(&response, &host, port, &path) {
            Some(next) => path = next,
            None => return outcome_of(response, port, &path).await,
        }
    }
    ProbeOutcome::failure(format!("redirected more than {MAX_REDIRECTS} times, at last to :{port}{path}"))
}

fn all_headers(port: u16, extra: &[HttpHeader]) -> Result<HeaderMap, ProbeOutcome> {
    let mut headers = HeaderMap::new();
    for HttpHeader { name, value } in extra {
        let pair = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
        let (Ok(name), Ok(value)) = pair else {
            return Err(ProbeOutcome::failure(format!("{name:?} with {value:?} is not a valid header")));
        };
        headers.append(name, value);
    }
    if !headers.contains_key(HOST) {
        let host = if port == 80 { "localhost".to_owned() } else { format!("localhost:{port}") };
        headers.insert(HOST, HeaderValue::try_from(host).expect("letters, a colon and digits"));
    }
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, HeaderValue::from_static("warren-health"));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// One request on its own connection, which closes when the response is dropped.
async fn send_request(
    io: TokioIo<tokio::net::TcpStream>,
    uri: Uri,
    headers: &HeaderMap,
) -> Result<HttpResponse, hyper::Error> {
    let (mut sender, connection) = http1::Builder::new().max_buf_size(MAX_HEADERS_SIZE).handshake(io).await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers.clone();
    let driver = ConnectionTask(tokio::spawn(async move {
        // Its error is returned by the pending response.
        connection.await.ok();
    }));
    let response = sender.send_request(request).await?;
    Ok(HttpResponse { response, _driver: driver })
}

/// A response, and the task that reads its connection.
struct HttpResponse {
    response: Response<Incoming>,
    _driver: ConnectionTask,
}

/// Drives a connection until it is dropped.
struct ConnectionTask(tokio::task::JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn outcome_of(mut answer: HttpResponse, port: u16, path: &str) -> ProbeOutcome {
    let status = answer.response.status();
    let summary = format!("HTTP {} from :{port}{path}", status.as_u16());
    if (StatusCode::OK.as_u16()..400).contains(&status.as_u16()) {
        return ProbeOutcome::success(summary);
    }
    let mut body = Vec::new();
    let read = async {
        while body.len() < MAX_OUTPUT
            && let Some(Ok(frame)) = answer.response.body_mut().frame().await
        {
            let data = frame.into_data().unwrap_or_default();
            body.extend_from_slice(&data[..data.len().min(MAX_OUTPUT - body.len())]);
        }
    };
    timeout(BODY_TIMEOUT, read).await.ok();
    ProbeOutcome::failure(summary).with_detail(&String::from_utf8_lossy(&body))
}

/// The error with its cause.
fn error_text(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
