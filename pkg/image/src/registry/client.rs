//! One HTTP attempt at a time: requests, and what their answers mean.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use tokio::sync::Semaphore;

use super::access::Access;
use super::challenge::Challenge;
use super::error::{RegistryError, said};
use super::settings::Patience;
use super::tries::Failure;
use crate::digest::Digest;
use crate::document::{DOCKER_LIST, DOCKER_MANIFEST, Descriptor, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
use crate::reference::Reference;

const CONTENT_DIGEST: &str = "docker-content-digest";
/// No error needs more words.
const MAX_WORDS: u64 = 16 << 10;

/// How a manifest is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named<'a> {
    Tag(&'a str),
    Digest(&'a Digest),
}

impl<'a> Named<'a> {
    /// A digest says more than a tag beside it.
    pub fn of(reference: &'a Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Self::Digest(digest),
            (None, tag) => Self::Tag(tag.unwrap_or("latest")),
        }
    }
}

/// A manifest or index, with the media type that the registry gives it.
#[derive(Debug)]
pub(crate) struct Found {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// One repository of a registry, as one user sees it.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(super) http: Client,
    pub(super) base: String,
    pub(super) registry: String,
    pub(super) path: String,
    /// Repository and tag or digest, for messages.
    pub(super) image: String,
    pub(super) is_plain: bool,
    pub(super) access: Access,
    pub patience: Patience,
    /// Held while a layer is fetched.
    pub transfers: Arc<Semaphore>,
}

impl Repository {
    /// Asks for a manifest or an index once.
    pub async fn manifest(&self, named: Named<'_>) -> Result<Found, Failure> {
        let what = "the manifest";
        let response = self.send(what, || self.ask(Method::GET, named)).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                let (registry, image) = (self.registry.clone(), self.image.clone());
                return Err(RegistryError::UnknownImage { registry, image }.into());
            }
            _ => return Err(self.unexpected(what, response).await),
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_owned();
        Ok(Found { media_type, bytes: self.body(what, response, MAX_DOCUMENT).await? })
    }

    /// Asks once which manifest or index a name stands for, without fetching it; `None` when the registry
    /// does not say.
    pub async fn digest(&self, named: Named<'_>) -> Result<Option<Digest>, Failure> {
        let what = "the digest of the manifest";
        let response = self.send(what, || self.ask(Method::HEAD, named)).await?;
        let said = response.headers().get(CONTENT_DIGEST).and_then(|value| value.to_str().ok());
        let digest = said.and_then(|text| Digest::parse(text).ok());
        Ok(digest.filter(|_| response.status() == StatusCode::OK))
    }

    fn ask(&self, method: Method, named: Named<'_>) -> RequestBuilder {
        let name = match named {
            Named::Tag(tag) => tag,
            Named::Digest(digest) => digest.as_str(),
        };
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST].join(", ");
        self.http.request(method, format!("{}/manifests/{name}", self.base)).header(ACCEPT, accept)
    }

    /// Asks once for the rest of a blob whose first `from` bytes are there.
    pub async fn blob(&self, blob: &Descriptor, from: u64) -> Result<Blob<'_>, Failure> {
        let what = format!("blob {}", blob.digest);
        let url = format!("{}/blobs/{}", self.base, blob.digest);
        let request = || match from {
            0 => self.http.get(&url),
            from => self.http.get(&url).header(RANGE, format!("bytes={from}-")),
        };
        let response = self.send(&what, request).await?;
        let nonsense = |reason: String| Failure::from(self.nonsense(&what, reason));
        let size = blob.size;
        let skip = match response.status() {
            // A registry that cannot resume begins again.
            StatusCode::OK => {
                if let Some(length) = response.content_length().filter(|length| *length != size) {
                    return Err(nonsense(format!("it has {length} bytes, its manifest says {size}")));
                }
                from
            }
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let wanted = format!("bytes {from}-");
                if !range.is_some_and(|range| range.starts_with(&wanted)) {
                    return Err(nonsense(format!("bytes from {from} on were wanted, {range:?} came")));
                }
                0
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(nonsense(format!("it has {from} bytes, its manifest says {size}")));
            }
            StatusCode::NOT_FOUND => {
                let (registry, image) = (self.registry.clone(), self.image.clone());
                let digest = blob.digest.clone();
                return Err(RegistryError::UnknownBlob { registry, image, digest }.into());
            }
            _ => return Err(self.unexpected(&what, response).await),
        };
        Ok(Blob { repository: self, response, what, skip })
    }

    /// Asks once for a small blob, which the caller checks. It is cut off soon after the size it should have.
    pub async fn document(&self, blob: &Descriptor) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut body = self.blob(blob, 0).await?;
        while bytes.len() as u64 <= blob.size && body.read(&mut bytes).await? {}
        Ok(bytes)
    }

    /// Sends a request, proving who asks when the registry wants to know.
    async fn send(&self, what: &str, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        let mut proof = self.access.proof().await;
        let mut is_new = false;
        loop {
            let response = self.attempt(what, self.access.apply(&proof, request())).await?;
            match response.status() {
                StatusCode::FORBIDDEN => return Err(self.denied(response).await.into()),
                StatusCode::UNAUTHORIZED if is_new => return Err(self.denied(response).await.into()),
                StatusCode::UNAUTHORIZED => {}
                _ => return Ok(response),
            }
            let demands = response.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenge = Challenge::parse(demands.filter_map(|value| value.to_str().ok()));
            let Some(better) = self.prove(&proof, challenge).await? else {
                return Err(self.denied(response).await.into());
            };
            (proof, is_new) = (better, true);
        }
    }

    /// One request and the head of its answer, whatever it is.
    pub(super) async fn attempt(&self, what: &str, request: RequestBuilder) -> Result<Response, Failure> {
        match tokio::time::timeout(self.patience.stall, request.send()).await {
            Ok(answer) => answer.map_err(|error| self.broken(what, &error)),
            Err(_) => Err(self.stalled(what)),
        }
    }

    /// A whole body of at most `limit` bytes.
    pub(super) async fn body(
        &self,
        what: &str,
        mut response: Response,
        limit: u64,
    ) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(what, &mut response).await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > limit {
                return Err(self.nonsense(what, format!("it has more than {limit} bytes")).into());
            }
        }
        Ok(body)
    }

    async fn chunk(&self, what: &str, response: &mut Response) -> Result<Option<Bytes>, Failure> {
        match tokio::time::timeout(self.patience.stall, response.chunk()).await {
            Ok(chunk) => chunk.map_err(|error| self.broken(what, &error)),
            Err(_) => Err(self.stalled(what)),
        }
    }

    /// What the registry says of an error, as far as it says it in time.
    pub(super) async fn said(&self, mut response: Response) -> String {
        let mut words = Vec::new();
        while let Ok(Some(chunk)) = self.chunk("its words", &mut response).await {
            words.extend_from_slice(&chunk);
            if words.len() as u64 > MAX_WORDS {
                break;
            }
        }
        said(&words)
    }

    /// The failure that a status means which no request expects.
    pub(super) async fn unexpected(&self, what: &str, response: Response) -> Failure {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let (registry, what) = (self.registry.clone(), what.to_owned());
        let said = self.said(response).await;
        let is_busy = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        match is_busy {
            true => Failure {
                error: RegistryError::Busy { registry, what, status, said },
                after: after.map(Duration::from_secs),
            },
            false => RegistryError::Refused { registry, what, status, said }.into(),
        }
    }

    pub(crate) fn nonsense(&self, what: &str, reason: String) -> RegistryError {
        RegistryError::Nonsense { registry: self.registry.clone(), what: what.to_owned(), reason }
    }

    fn stalled(&self, what: &str) -> Failure {
        let (registry, silence) = (self.registry.clone(), self.patience.stall);
        RegistryError::Stalled { registry, what: what.to_owned(), silence }.into()
    }

    /// What an error of the HTTP client means. Its own text names URLs, which may hold signatures.
    fn broken(&self, what: &str, error: &reqwest::Error) -> Failure {
        let (registry, what) = (self.registry.clone(), what.to_owned());
        if let Some(tls) = tls_error(error) {
            let reason = tls.to_string();
            return RegistryError::Tls { registry, reason, advice: advice(tls) }.into();
        }
        let mut reason: &dyn std::error::Error = error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let reason = reason.to_string();
        if error.is_redirect() {
            return RegistryError::Nonsense { registry, what, reason }.into();
        }
        match error.is_connect() {
            true => RegistryError::Unreachable { registry, reason }.into(),
            false => RegistryError::Broken { registry, what, reason }.into(),
        }
    }
}

/// The TLS error somewhere inside another one. An `io::Error` does not call what it was made from its source.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let wrapped = wrapped.and_then(|inner| tls_error(inner));
    wrapped.or_else(|| tls_error(error.source()?))
}

fn advice(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidMessage(_) => {
            "if it speaks plain HTTP, name it as an insecure registry of this node"
        }
        rustls::Error::InvalidCertificate(_) => {
            "install its authority's certificate on this machine, or correct the registry's name"
        }
        _ => "look at the registry's TLS settings",
    }
}

/// The bytes of a blob as they come.
pub(crate) struct Blob<'a> {
    repository: &'a Repository,
    response: Response,
    what: String,
    /// Bytes still to come that the caller has.
    skip: u64,
}

impl Blob<'_> {
    /// What it is, for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The failure of a body that ended in order and too early.
    pub fn cut_short(&self, received: u64, size: u64) -> Failure {
        let (registry, what) = (self.repository.registry.clone(), self.what.clone());
        let reason = format!("it ended after {received} of {size} bytes");
        RegistryError::Broken { registry, what, reason }.into()
    }

    /// Appends the next bytes to `buffer`; `false` at the end.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let Some(chunk) = self.repository.chunk(&self.what, &mut self.response).await? else {
                return Ok(false);
            };
            let known = self.skip.min(chunk.len() as u64) as usize;
            self.skip -= known as u64;
            if known < chunk.len() {
                buffer.extend_from_slice(&chunk[known..]);
                return Ok(true);
            }
        }
    }
}
