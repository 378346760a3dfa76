//! An HTTP/1.1 GET that is answered with a status of 200 to 399.
//!
//! Status and headers decide. Redirects are followed as long as they stay on the host and port that was asked; one that
//! leads elsewhere, or says nothing of where, is a good answer by itself, since the server that gave it works.

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
use crate::namespace::Sockets;
use crate::{MAX_OUTPUT, Outcome, Target};

/// Redirects that are followed one after the other.
const MAX_REDIRECTS: usize = 5;
/// The most bytes that status line and headers may have.
const MAX_HEAD: usize = 16 << 10;
/// How long the beginning of a bad answer's body is waited for: it is only shown.
const BODY_WITHIN: Duration = Duration::from_millis(250);

/// Asks for `path`, and for what it redirects to.
pub(super) async fn get(
    sockets: &Sockets,
    target: &Target,
    port: u16,
    path: &str,
    headers: &[HttpHeader],
) -> Outcome {
    let headers = match all_headers(port, headers) {
        Ok(headers) => headers,
        Err(outcome) => return outcome,
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    let mut path = path.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let Ok(uri) = path.parse::<Uri>() else {
            return Outcome::bad(format!("{path:?} is no path that can be asked for"));
        };
        let stream = match connect(sockets, target, port).await {
            Ok(stream) => stream,
            Err(error) => return error.into_outcome(),
        };
        let response = match ask(TokioIo::new(stream), uri, &headers).await {
            Ok(response) => response,
            Err(error) => return Outcome::bad(format!("no HTTP from :{port}{path}: {}", words(&error))),
        };
        match redirect::of(&response, &host, port, &path) {
            Some(next) => path = next,
            None => return outcome_of(response, port, &path).await,
        }
    }
    Outcome::bad(format!("redirected more than {MAX_REDIRECTS} times, at last to :{port}{path}"))
}

fn all_headers(port: u16, wanted: &[HttpHeader]) -> Result<HeaderMap, Outcome> {
    let mut headers = HeaderMap::new();
    for HttpHeader { name, value } in wanted {
        let pair = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
        let (Ok(name), Ok(value)) = pair else {
            return Err(Outcome::bad(format!("{name:?} with {value:?} is no header")));
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

/// One request on a connection of its own, which ends when the response is dropped.
async fn ask(
    io: TokioIo<tokio::net::TcpStream>,
    uri: Uri,
    headers: &HeaderMap,
) -> Result<Answer, hyper::Error> {
    let (mut sender, connection) = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(io).await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers.clone();
    let driver = Driver(tokio::spawn(async move {
        // What went wrong is told to whoever waits for the response.
        connection.await.ok();
    }));
    let response = sender.send_request(request).await?;
    Ok(Answer { response, _driver: driver })
}

/// A response, and what reads its connection.
struct Answer {
    response: Response<Incoming>,
    _driver: Driver,
}

/// Reads and writes a connection until it is dropped.
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn outcome_of(mut answer: Answer, port: u16, path: &str) -> Outcome {
    let status = answer.response.status();
    let said = format!("HTTP {} from :{port}{path}", status.as_u16());
    if (StatusCode::OK.as_u16()..400).contains(&status.as_u16()) {
        return Outcome::good(said);
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
    timeout(BODY_WITHIN, read).await.ok();
    Outcome::bad(said).with_detail(&String::from_utf8_lossy(&body))
}

/// The error with its cause, for people.
fn words(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
