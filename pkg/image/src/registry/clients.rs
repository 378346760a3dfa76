//! HTTP clients for all registries: one for those on loopback, one for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use reqwest::Client;
use reqwest::redirect::{Action, Attempt, Policy};
use tokio::sync::{OnceCell, Semaphore};

use super::auth::RegistryAuth;
use super::client::Repository;
use super::credentials::RegistryCredentials;
use super::error::RegistryError;
use super::settings::{RegistryPolicy, RegistrySettings, is_loopback};
use crate::reference::Reference;

/// Concurrent layer downloads from one registry, over all pulls.
const MAX_TRANSFERS: usize = 6;
const MAX_REDIRECTS: usize = 10;
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const HUB_HOST: &str = "registry-1.docker.io";

/// All registries, with the settings of this node.
#[derive(Debug)]
pub(crate) struct RegistryClients {
    settings: RegistrySettings,
    direct: OnceCell<Client>,
    proxied: OnceCell<Client>,
    transfers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl RegistryClients {
    pub fn new(settings: RegistrySettings) -> Self {
        Self { settings, direct: OnceCell::new(), proxied: OnceCell::new(), transfers: Mutex::default() }
    }

    pub fn policy(&self) -> &RegistryPolicy {
        &self.settings.policy
    }

    /// The repository of an image, with the given credentials or those of this node.
    pub async fn repository(
        &self,
        reference: &Reference,
        credentials: Option<RegistryCredentials>,
    ) -> Result<Repository, RegistryError> {
        let (registry, path) = (reference.domain(), reference.path());
        let is_plain = self.settings.uses_plain_http(registry);
        let client = if is_loopback(registry) { &self.direct } else { &self.proxied };
        let build = || async {
            let (settings, is_direct) = (self.settings.clone(), is_loopback(registry));
            // Building the client reads the system certificates.
            let built = tokio::task::spawn_blocking(move || client_for(&settings, is_direct));
            built.await.expect("building an HTTP client does not panic")
        };
        let http = client.get_or_try_init(build).await.map_err(|error| RegistryError::Tls {
            registry: registry.to_owned(),
            reason: error.to_string(),
            advice: "check the system certificates of this machine",
        })?;
        let host = if registry == "docker.io" { HUB_HOST } else { registry };
        let scheme = if is_plain { "http" } else { "https" };
        let image = match (reference.tag(), reference.digest()) {
            (_, Some(digest)) => format!("{path}@{digest}"),
            (tag, None) => format!("{path}:{}", tag.unwrap_or_default()),
        };
        Ok(Repository {
            http: http.clone(),
            base: format!("{scheme}://{host}/v2/{path}"),
            registry: registry.to_owned(),
            path: path.to_owned(),
            image,
            uses_plain_http: is_plain,
            auth: RegistryAuth::new(credentials.or_else(|| self.settings.credentials_for(registry).cloned())),
            policy: self.settings.policy.clone(),
            transfers: self.transfers(registry),
        })
    }

    fn transfers(&self, registry: &str) -> Arc<Semaphore> {
        let mut all = self.transfers.lock().expect("no holder panics");
        if let Some(existing) = all.get(registry).and_then(Weak::upgrade) {
            return existing;
        }
        all.retain(|_, semaphore| semaphore.strong_count() > 0);
        let made = Arc::new(Semaphore::new(MAX_TRANSFERS));
        all.insert(registry.to_owned(), Arc::downgrade(&made));
        made
    }
}

fn client_for(settings: &RegistrySettings, is_direct: bool) -> reqwest::Result<Client> {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (added, ignored) = roots.add_parsable_certificates(native.certs);
    tracing::debug!(added, ignored, errors = ?native.errors, "read system certificates");
    roots.add_parsable_certificates(settings.authorities.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("warren/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(settings.policy.connect_timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(Policy::custom(redirect));
    if is_direct { client.no_proxy() } else { client }.build()
}

/// Blobs are often on another host. reqwest does not forward credentials to another host.
fn redirect(attempt: Attempt<'_>) -> Action {
    let from_tls = attempt.previous().last().is_some_and(|previous| previous.scheme() == "https");
    if from_tls && attempt.url().scheme() != "https" {
        return attempt.error("redirect from TLS to plain HTTP");
    }
    match attempt.previous().len() > MAX_REDIRECTS {
        true => attempt.error("too many redirects"),
        false => attempt.follow(),
    }
}
