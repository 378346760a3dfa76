//! A request: its path without the version, its query and its body.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Cursor;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Chain, ReadHalf, WriteHalf};
use warren_security::PeerConnection;
use zeroize::Zeroizing;

use crate::docker_error::DockerError;
use crate::filters::Filters;
use crate::hang_up::HangUp;

/// The versions of the API, as numbers after `1.`.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 24..=44;
/// The largest body in bytes.
pub const MAX_BODY: usize = 4 << 20;
/// How long the body of a request may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A request that was read completely. The body may have the data of a secret: it is wiped when dropped, and there is
/// no `Debug`.
pub struct DockerRequest {
    pub method: Method,
    /// Who sent it.
    pub caller: String,
    /// The parts of the path, decoded.
    pub path: Vec<String>,
    pub query: BTreeMap<String, String>,
    /// The header `X-Registry-Auth` names a login.
    pub has_registry_auth: bool,
    /// The body is compressed.
    pub has_content_encoding: bool,
    content_type: String,
    body: Zeroizing<Vec<u8>>,
    /// A body that is read while the request is answered.
    stream: Mutex<Option<Incoming>>,
    upgrade: Mutex<Option<ConnectionUpgrade>>,
}

/// What a connection does after the response that upgrades it, if it does anything.
pub type UpgradedWork = Arc<Mutex<Option<BoxFuture<'static, ()>>>>;

/// A connection that the client wants to use for bytes of both directions.
pub struct ConnectionUpgrade {
    upgraded: OnUpgrade,
    work: UpgradedWork,
}

/// The bytes of both directions.
pub struct UpgradedConnection {
    /// What was received with the request comes first.
    pub input: Chain<Cursor<Bytes>, ReadHalf<PeerConnection>>,
    pub output: WriteHalf<PeerConnection>,
    pub hang_up: HangUp,
}

/// How long a client has to close its connection once all output was sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends the output, and reads what the client still sends: a connection that is closed with input that nobody read is
/// an error for the client.
pub async fn close(mut input: impl AsyncRead + Unpin, mut output: impl AsyncWrite + Unpin) {
    let _ = output.shutdown().await;
    let mut nowhere = tokio::io::sink();
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, tokio::io::copy(&mut input, &mut nowhere)).await;
}

impl ConnectionUpgrade {
    /// Runs `work` with the connection, once the response was sent.
    pub fn then<F>(self, work: impl FnOnce(UpgradedConnection) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let upgraded = self.upgraded;
        let work = async move {
            match upgraded.await.map(|upgraded| upgraded.downcast::<TokioIo<PeerConnection>>()) {
                Ok(Ok(parts)) => {
                    let connection = parts.io.into_inner();
                    let hang_up = HangUp::of(connection.as_fd().try_clone_to_owned());
                    let (input, output) = tokio::io::split(connection);
                    let input = Cursor::new(parts.read_buf).chain(input);
                    work(UpgradedConnection { input, output, hang_up }).await;
                }
                Ok(Err(_)) => tracing::warn!("an upgraded connection of the Docker API is of another kind"),
                Err(error) => tracing::debug!(%error, "a connection of the Docker API was not upgraded"),
            }
        };
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::pin(work));
    }
}

impl DockerRequest {
    /// Reads the body, but for an archive. `work` is that of the connection.
    pub async fn read(
        mut request: hyper::Request<Incoming>,
        caller: String,
        work: UpgradedWork,
    ) -> Result<Self, DockerError> {
        let wants_upgrade = request.headers().contains_key(UPGRADE);
        let upgraded = wants_upgrade.then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let (path, query) = parse_target(head.uri.path(), head.uri.query().unwrap_or_default())?;
        let header =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = header(CONTENT_TYPE.as_str()).to_owned();
        // `{}` in base64.
        let has_registry_auth = !matches!(header("x-registry-auth"), "" | "e30=" | "e30");
        let has_content_encoding = !matches!(header(CONTENT_ENCODING.as_str()), "" | "identity");
        let late = |_| DockerError::new(StatusCode::REQUEST_TIMEOUT, "the body of the request took too long");
        let end = path.last().map(String::as_str);
        let is_archive = (head.method == Method::PUT && end == Some("archive")) || path == ["images", "load"];
        let (body, stream) = if is_archive {
            (Zeroizing::default(), Some(body))
        } else {
            (tokio::time::timeout(BODY_TIMEOUT, read_body(body)).await.map_err(late)??, None)
        };
        let upgrade = upgraded.map(|upgraded| ConnectionUpgrade { upgraded, work });
        Ok(Self {
            method: head.method,
            caller,
            path,
            query,
            has_registry_auth,
            has_content_encoding,
            content_type,
            body,
            stream: Mutex::new(stream),
            upgrade: Mutex::new(upgrade),
        })
    }

    /// Whether there is a body that was read.
    pub fn has_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// The body of an archive; `None` the second time.
    pub fn take_stream(&self) -> Option<Incoming> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The connection, if the client asks for it; `None` the second time.
    pub fn take_upgrade(&self) -> Option<ConnectionUpgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The body, which must be JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, DockerError> {
        if self.body.is_empty() {
            return Err(DockerError::invalid("the request has no body; send JSON"));
        }
        let kind = self.content_type.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let found: String = self.content_type.chars().take(64).collect();
            let message = format!("unsupported Content-Type header ({found}): must be 'application/json'");
            return Err(DockerError::invalid(message));
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            // The message of a wrong type repeats the value, which may be secret.
            let kind = if error.is_data() { "a field of the wrong type" } else { "no valid JSON" };
            let (line, column) = (error.line(), error.column());
            DockerError::invalid(format!("the body has {kind} at line {line} column {column}"))
        })
    }

    /// A text of the query; `None` if it is missing or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// A switch of the query, as Docker reads it: anything but empty, `0`, `no`, `false` and `none`.
    pub fn flag(&self, name: &str) -> bool {
        let text = self.query.get(name).map(|text| text.trim().to_ascii_lowercase()).unwrap_or_default();
        !matches!(text.as_str(), "" | "0" | "no" | "false" | "none")
    }

    /// The version that an update is based on.
    pub fn version(&self) -> Result<u64, DockerError> {
        let text = self.query.get("version").map_or("", String::as_str);
        text.parse().map_err(|_| {
            let found: String = text.chars().take(64).collect();
            DockerError::invalid(format!(
                "invalid version {found:?}: give the Version.Index that inspect shows"
            ))
        })
    }

    /// The filters of a list, of which only those in `known` are allowed.
    pub fn filters(&self, known: &[&str]) -> Result<Filters, DockerError> {
        Filters::parse(self.query.get("filters").map_or("", String::as_str), known)
    }
}

async fn read_body(mut body: Incoming) -> Result<Zeroizing<Vec<u8>>, DockerError> {
    let mut read = Zeroizing::new(Vec::new());
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| DockerError::invalid(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > MAX_BODY {
            let message = format!("the body has more than {MAX_BODY} bytes");
            return Err(DockerError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// A path without the version, and a query.
type Target = (Vec<String>, BTreeMap<String, String>);

fn parse_target(path: &str, query: &str) -> Result<Target, DockerError> {
    let wrong = || DockerError::invalid("the path or the query is not percent-encoded UTF-8");
    let parts = path.split('/').filter(|part| !part.is_empty()).map(|part| decode(part, false));
    let mut parts: Vec<String> = parts.collect::<Option<_>>().ok_or_else(wrong)?;
    if let Some(version) = parts.first().and_then(|first| version_of(first)) {
        check_version(version?)?;
        parts.remove(0);
    }
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name, true)?, decode(value, true)?))
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(pair);
    Ok((parts, pairs.collect::<Option<_>>().ok_or_else(wrong)?))
}

/// The version that a part of a path is; `None` if it is none.
fn version_of(part: &str) -> Option<Result<(u16, u16), DockerError>> {
    let text = part.strip_prefix('v').filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))?;
    let version =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let wrong = || DockerError::invalid("the version of the API in the path is not one; give one like v1.44");
    Some(version.ok_or_else(wrong))
}

fn check_version((major, minor): (u16, u16)) -> Result<(), DockerError> {
    let (oldest, newest) = (VERSIONS.start(), VERSIONS.end());
    if major < 1 || (major == 1 && minor < *oldest) {
        return Err(DockerError::invalid(format!(
            "client version {major}.{minor} is too old. Minimum supported API version is 1.{oldest}, please upgrade \
             your client to a newer version"
        )));
    }
    if major > 1 || minor > *newest {
        return Err(DockerError::invalid(format!(
            "client version {major}.{minor} is too new. Maximum supported API version is 1.{newest}"
        )));
    }
    Ok(())
}

/// Percent-encoded UTF-8. In a query a plus sign is a blank.
fn decode(text: &str, is_query: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| {
                    char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
                };
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                high << 4 | low
            }
            b'+' if is_query => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_negotiated() {
        let path =
            |path: &str| parse_target(path, "").map(|(parts, _)| parts.join("/")).map_err(|e| e.message);
        assert_eq!(path("/v1.24/services/web").unwrap(), "services/web");
        assert_eq!(path("/v1.44/_ping").unwrap(), "_ping");
        assert_eq!(path("/info").unwrap(), "info");
        assert_eq!(path("/volumes/v1").unwrap(), "volumes/v1");
        let too_old = "client version 1.23 is too old. Minimum supported API version is 1.24, please upgrade your \
                       client to a newer version";
        assert_eq!(path("/v1.23/info").unwrap_err(), too_old);
        let too_new = "client version 1.45 is too new. Maximum supported API version is 1.44";
        assert_eq!(path("/v1.45/info").unwrap_err(), too_new);
        assert!(path("/v2.0/info").unwrap_err().contains("too new"));
        assert!(path("/v1x/info").unwrap_err().contains("give one like v1.44"));
    }

    #[test]
    fn target_is_decoded() {
        let (path, query) = parse_target("/services/a%2Fb+c", "filters=%7B%7D&x=a+b&status").unwrap();
        assert_eq!(path, ["services", "a/b+c"]);
        let expected = [("filters", "{}"), ("status", ""), ("x", "a b")];
        assert_eq!(query, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        for wrong in ["/%", "/%f", "/%zz", "/%ff"] {
            assert!(parse_target(wrong, "").is_err(), "{wrong}");
        }
    }
}
