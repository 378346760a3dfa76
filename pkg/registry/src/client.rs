//! Single HTTP attempts: requests, and the interpretation of their answers.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use tokio::sync::Semaphore;

use super::address_guard::{AddressGuard, ForbiddenAddress};
use super::auth::RegistryAuth;
use super::challenge::AuthChallenge;
use super::error::{RegistryError, error_message};
use super::retry::AttemptFailure;
use super::settings::RegistryPolicy;
use crate::digest::Digest;
use crate::media_type::{IMAGE_TYPES, MAX_DOCUMENT};
use crate::reference::Reference;

const CONTENT_DIGEST: &str = "docker-content-digest";
/// Limit of an error body.
const MAX_ERROR_BODY: u64 = 16 << 10;

tokio::task_local! {
    /// Whether the request that this task sends was redirected: errors of the HTTP client do not say so.
    static IS_REDIRECTED: Cell<bool>;
}

/// Records that the request that this task sends is redirected.
pub(super) fn note_redirect() {
    // It fails where no request is sent.
    let _ = IS_REDIRECTED.try_with(|is_redirected| is_redirected.set(true));
}

/// Selects a manifest by tag or digest.
#[derive(Clone, Copy, Debug)]
pub enum ManifestSelector<'a> {
    /// By its tag.
    Tag(&'a str),
    /// By its digest.
    Digest(&'a Digest),
}

impl<'a> ManifestSelector<'a> {
    /// A digest is more specific than a tag.
    pub fn from_reference(reference: &'a Reference) -> Self {
        match (reference.digest(), reference.tag()) {
            (Some(digest), _) => Self::Digest(digest),
            (None, tag) => Self::Tag(tag.unwrap_or("latest")),
        }
    }
}

/// A manifest or index, with the media type from the registry.
#[derive(Debug)]
pub struct FetchedManifest {
    /// As the registry says.
    pub media_type: String,
    /// The document.
    pub bytes: Vec<u8>,
}

/// What the head of an answer says of a manifest or index.
#[derive(Debug, Default)]
pub(super) struct ManifestHead {
    pub digest: Option<Digest>,
    pub media_type: Option<String>,
    /// In bytes.
    pub size: Option<u64>,
}

/// How tokens are requested if some addresses are forbidden.
#[derive(Debug)]
pub(super) struct TokenGuard {
    pub rules: AddressGuard,
    /// For token services that are not exempt.
    pub client: Client,
}

/// One repository of a registry, accessed as one user.
#[derive(Debug)]
pub struct Repository {
    pub(super) http: Client,
    pub(super) guard: Option<TokenGuard>,
    pub(super) base: String,
    pub(super) registry: String,
    pub(super) path: String,
    /// Repository and tag or digest, for messages.
    pub(super) image: String,
    pub(super) uses_plain_http: bool,
    pub(super) auth: RegistryAuth,
    /// Timeouts and retry limits.
    pub policy: RegistryPolicy,
    /// Held while a layer is fetched.
    pub transfers: Arc<Semaphore>,
}

impl Repository {
    /// Fetches a manifest or an index; one attempt.
    ///
    /// # Errors
    /// Why the attempt failed; the same holds for the functions below.
    pub async fn manifest(&self, named: ManifestSelector<'_>) -> Result<FetchedManifest, AttemptFailure> {
        let what = "the manifest";
        let response = self.send(what, || self.manifest_request(Method::GET, named)).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(self.unknown_image().into()),
            _ => return Err(self.unexpected(what, response).await),
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type(content_type.unwrap_or_default());
        Ok(FetchedManifest { media_type, bytes: self.body(what, response, MAX_DOCUMENT).await? })
    }

    /// Requests the digest of a manifest or index without fetching it; `None` when the registry returns
    /// none.
    pub async fn digest(&self, named: ManifestSelector<'_>) -> Result<Option<Digest>, AttemptFailure> {
        Ok(self.manifest_head(named).await?.digest)
    }

    /// Requests what a registry says of a manifest or index without fetching it. Each part may be missing.
    pub(super) async fn manifest_head(
        &self,
        named: ManifestSelector<'_>,
    ) -> Result<ManifestHead, AttemptFailure> {
        let what = "the digest of the manifest";
        let response = self.send(what, || self.manifest_request(Method::HEAD, named)).await?;
        if response.status() != StatusCode::OK {
            return Ok(ManifestHead::default());
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        Ok(ManifestHead {
            digest: header(CONTENT_DIGEST).and_then(|text| Digest::parse(text).ok()),
            media_type: header(CONTENT_TYPE.as_str()).map(media_type),
            size: header(CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok()),
        })
    }

    pub(super) fn manifest_request(&self, method: Method, named: ManifestSelector<'_>) -> RequestBuilder {
        let name = match named {
            ManifestSelector::Tag(tag) => tag,
            ManifestSelector::Digest(digest) => digest.as_str(),
        };
        let accept = IMAGE_TYPES.join(", ");
        self.http.request(method, format!("{}/manifests/{name}", self.base)).header(ACCEPT, accept)
    }

    /// Requests the rest of a blob of `size` bytes after the first `from` bytes; one attempt.
    pub async fn blob(&self, blob: &Digest, size: u64, from: u64) -> Result<BlobReader<'_>, AttemptFailure> {
        let what = format!("blob {blob}");
        let url = format!("{}/blobs/{blob}", self.base);
        let request = || match from {
            0 => self.http.get(&url),
            from => self.http.get(&url).header(RANGE, format!("bytes={from}-")),
        };
        let response = self.send(&what, request).await?;
        let nonsense = |reason: String| AttemptFailure::from(self.invalid_answer(&what, reason));
        let skip = match response.status() {
            // A registry without resume support sends the blob from the start.
            StatusCode::OK => {
                if let Some(length) = response.content_length().filter(|length| *length != size) {
                    return Err(nonsense(format!("it has {length} bytes, expected {size}")));
                }
                from
            }
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let expected = format!("bytes {from}-");
                if !range.is_some_and(|range| range.starts_with(&expected)) {
                    return Err(nonsense(format!("expected bytes from {from}, received {range:?}")));
                }
                0
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(nonsense(format!("it has {from} bytes, expected {size}")));
            }
            StatusCode::NOT_FOUND => {
                let (registry, image) = (self.registry.clone(), self.image.clone());
                let digest = blob.clone();
                return Err(RegistryError::UnknownBlob { registry, image, digest }.into());
            }
            _ => return Err(self.unexpected(&what, response).await),
        };
        Ok(BlobReader { repository: self, response, what, bytes_to_skip: skip })
    }

    /// Fetches a small blob, which the caller checks. Reading stops soon after its declared size.
    pub async fn document(&self, blob: &Digest, size: u64) -> Result<Vec<u8>, AttemptFailure> {
        let mut bytes = Vec::new();
        let mut body = self.blob(blob, size, 0).await?;
        while bytes.len() as u64 <= size && body.read(&mut bytes).await? {}
        Ok(bytes)
    }

    /// Sends a request and authenticates when the registry requires it.
    async fn send(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response, AttemptFailure> {
        let mut proof = self.auth.authorization().await?;
        let mut is_new = false;
        loop {
            let response = self.attempt(what, proof.apply(request())).await?;
            let challenge = match response.status() {
                StatusCode::FORBIDDEN => return Err(self.access_denied(proof.user, response).await.into()),
                StatusCode::UNAUTHORIZED => self.challenge(what, &response)?,
                _ => return Ok(response),
            };
            if is_new {
                return Err(self.access_denied(proof.user, response).await.into());
            }
            let fetch_token = |realm, service, credentials| self.fetch_token(realm, service, credentials);
            let Some(better) = self.auth.authenticate(&proof, challenge, fetch_token).await? else {
                return Err(self.access_denied(proof.user, response).await.into());
            };
            (proof, is_new) = (better, true);
        }
    }

    /// One request and the head of its answer, with any status.
    pub(super) async fn attempt(
        &self,
        what: &str,
        request: RequestBuilder,
    ) -> Result<Response, AttemptFailure> {
        let sent = async {
            match tokio::time::timeout(self.policy.stall_timeout, request.send()).await {
                Ok(answer) => answer.map_err(|error| self.broken(what, &error)),
                Err(_) => Err(self.stalled(what)),
            }
        };
        IS_REDIRECTED.scope(Cell::new(false), sent).await
    }

    /// How the registry wants to be asked, if it says so in a known form.
    ///
    /// # Errors
    /// The answer is of another host, to which a redirect led. Whoever has that host gets neither password nor token:
    /// they are for the registry.
    pub(super) fn challenge(
        &self,
        what: &str,
        response: &Response,
    ) -> Result<Option<AuthChallenge>, RegistryError> {
        let found = response.url();
        if !self.is_own(found) {
            let host = found.host_str().unwrap_or_default();
            let reason = format!("it redirects to {host}, which demands a login");
            return Err(self.invalid_answer(what, reason));
        }
        let demands = response.headers().get_all(WWW_AUTHENTICATE).iter();
        Ok(AuthChallenge::parse(demands.filter_map(|value| value.to_str().ok())))
    }

    /// Whether the registry has this address, and not its token service or another host.
    fn is_own(&self, url: &Url) -> bool {
        Url::parse(&self.base).is_ok_and(|own| own.origin() == url.origin())
    }

    /// A whole body of at most `limit` bytes.
    pub(super) async fn body(
        &self,
        what: &str,
        mut response: Response,
        limit: u64,
    ) -> Result<Vec<u8>, AttemptFailure> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(what, &mut response).await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > limit {
                return Err(self.invalid_answer(what, format!("it has more than {limit} bytes")).into());
            }
        }
        Ok(body)
    }

    async fn chunk(&self, what: &str, response: &mut Response) -> Result<Option<Bytes>, AttemptFailure> {
        match tokio::time::timeout(self.policy.stall_timeout, response.chunk()).await {
            Ok(chunk) => chunk.map_err(|error| self.broken(what, &error)),
            Err(_) => Err(self.stalled(what)),
        }
    }

    /// The error message of the registry, as far as it arrives in time.
    async fn error_message(&self, mut response: Response) -> String {
        let mut words = Vec::new();
        while let Ok(Some(chunk)) = self.chunk("the error message", &mut response).await {
            words.extend_from_slice(&chunk);
            if words.len() as u64 > MAX_ERROR_BODY {
                break;
            }
        }
        error_message(&words)
    }

    /// The error of a request that was denied to this user, or to anybody.
    pub(super) async fn access_denied(&self, user: Option<String>, response: Response) -> RegistryError {
        let message = self.error_message(response).await;
        let (registry, image) = (self.registry.clone(), self.image.clone());
        match user {
            None => RegistryError::NeedsCredentials { registry, image, message },
            Some(user) => RegistryError::Denied { registry, image, user, message },
        }
    }

    /// The failure for a status that no request expects.
    pub(super) async fn unexpected(&self, what: &str, response: Response) -> AttemptFailure {
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let (registry, what) = (self.registry.clone(), what.to_owned());
        let message = self.error_message(response).await;
        let is_busy = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        match is_busy {
            true => AttemptFailure {
                error: RegistryError::Busy { registry, what, status, message },
                retry_after: after.map(Duration::from_secs),
            },
            false => RegistryError::Refused { registry, what, status, message }.into(),
        }
    }

    pub(super) fn unknown_image(&self) -> RegistryError {
        RegistryError::UnknownImage { registry: self.registry.clone(), image: self.image.clone() }
    }

    /// The error for an answer to `what` that does not follow the protocol.
    pub fn invalid_answer(&self, what: &str, reason: String) -> RegistryError {
        RegistryError::InvalidAnswer { registry: self.registry.clone(), what: what.to_owned(), reason }
    }

    fn stalled(&self, what: &str) -> AttemptFailure {
        let (registry, silence) = (self.registry.clone(), self.policy.stall_timeout);
        RegistryError::Stalled { registry, what: what.to_owned(), silence }.into()
    }

    /// Converts an error of the HTTP client. Its own text contains URLs, which may hold signatures.
    fn broken(&self, what: &str, error: &reqwest::Error) -> AttemptFailure {
        let (registry, what) = (self.registry.clone(), what.to_owned());
        // The error has the first URL of the request also after redirects.
        let is_own_host = error.is_connect()
            && error.url().is_some_and(|url| self.is_own(url))
            && IS_REDIRECTED.try_with(Cell::get).is_ok_and(|is_redirected| !is_redirected);
        if let Some(tls) = tls_error(error) {
            let reason = tls.to_string();
            return RegistryError::Tls { registry, reason, advice: advice(tls), is_own_host }.into();
        }
        let mut reason: &(dyn std::error::Error + 'static) = error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        if let Some(forbidden) = reason.downcast_ref::<ForbiddenAddress>() {
            return RegistryError::Forbidden { registry, reason: forbidden.to_string() }.into();
        }
        let reason = reason.to_string();
        if error.is_redirect() {
            return RegistryError::InvalidAnswer { registry, what, reason }.into();
        }
        match error.is_connect() {
            true => RegistryError::Unreachable { registry, reason, is_own_host }.into(),
            false => RegistryError::Broken { registry, what, reason }.into(),
        }
    }
}

/// The type without its parameters.
fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_owned()
}

/// Finds the TLS error inside another error. An `io::Error` does not return its inner error as source.
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
            "if it uses plain HTTP, configure it as an insecure registry of this node"
        }
        rustls::Error::InvalidCertificate(_) => {
            "install its CA certificate on this machine, or correct the registry name"
        }
        _ => "check the TLS settings of the registry",
    }
}

/// The bytes of a blob as they arrive.
pub struct BlobReader<'a> {
    repository: &'a Repository,
    response: Response,
    what: String,
    /// Leading bytes to skip because the caller has them.
    bytes_to_skip: u64,
}

impl BlobReader<'_> {
    /// Name of the blob, for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The failure of a body that ended cleanly but too early.
    pub fn cut_short(&self, received: u64, size: u64) -> AttemptFailure {
        let (registry, what) = (self.repository.registry.clone(), self.what.clone());
        let reason = format!("it ended after {received} of {size} bytes");
        RegistryError::Broken { registry, what, reason }.into()
    }

    /// Appends the next bytes to `buffer`; `false` at the end.
    ///
    /// # Errors
    /// The connection broke or stalled.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> Result<bool, AttemptFailure> {
        loop {
            let Some(chunk) = self.repository.chunk(&self.what, &mut self.response).await? else {
                return Ok(false);
            };
            let known = self.bytes_to_skip.min(chunk.len() as u64) as usize;
            self.bytes_to_skip -= known as u64;
            if known < chunk.len() {
                buffer.extend_from_slice(&chunk[known..]);
                return Ok(true);
            }
        }
    }
}
